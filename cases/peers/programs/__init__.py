"""The programs. Each is a function of keyword arguments that makes its own groups and returns
numbers, as a rank of its own under torchrun; nothing in here knows of the testbed.
"""
