"""The flight recorder: events, the shared memory they are kept in, and the layer under
torch.distributed.

Below every other room: nothing here imports a cache, a protocol or the world.
"""
