"""Where a rank's pools lie, how bytes move between them, and what its events are.

What lives here: the face of a device, the CPU, CUDA, and the one module that calls ``torch.cuda``.
A host never initialises CUDA, since it forks: only a rank makes a CudaDevice, after its fork. How
many GPUs there are is asked of nvidia-smi (``gpus``).
"""

from testbed.device.base import Device
from testbed.device.cpu import CPU, CpuDevice
from testbed.device.cuda import CudaDevice

__all__ = ["CPU", "CpuDevice", "CudaDevice", "Device"]
