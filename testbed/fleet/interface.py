"""Which network interface has an address: gloo is told interfaces by name."""

import ctypes
import os
import socket
from collections.abc import Iterator


class _Interface(ctypes.Structure):
    """struct ifaddrs of ifaddrs.h, down to the address; the list's link comes first."""


_Interface._fields_ = [
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]

# Where the bytes of the address lie in sockaddr_in and sockaddr_in6, and how many there are.
_PLACES = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}


def interface_of(address: str) -> str:
    """Name of the interface that has this numeric IPv4 or IPv6 address; empty if none has."""
    return next((name for name, its in _addresses() if its == address), "")


def _addresses() -> Iterator[tuple[str, str]]:
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Interface)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        entry = first
        while entry:
            its = entry.contents
            if its.address:
                family = ctypes.c_uint16.from_address(its.address).value
                if family in _PLACES:
                    offset, size = _PLACES[socket.AddressFamily(family)]
                    packed = ctypes.string_at(its.address + offset, size)
                    yield its.name.decode(), socket.inet_ntop(family, packed)
            entry = its.next
    finally:
        libc.freeifaddrs(first)
