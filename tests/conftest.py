"""Tests that fork ranks need a parent that never started torch's thread pool."""

import torch

torch.set_num_threads(1)
