"""Shared memory without a name: one descriptor of it, every page allocated, to be sent to whoever is to map it.

Normally a memory file (memfd). Where the kernel has none, or where the environment says so, a file in SHARED_FOLDER whose name is
gone again before anybody else hears of it; such a file cannot be sealed, so that its readers map it read-only of their own
accord. Either way nothing is left behind when the last descriptor and the last mapping are gone. Sizes in bytes.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from omnistage.config.env import wants_named_memory
from omnistage.core.errors import ConnectorError

SHARED_FOLDER = Path("/dev/shm")

_F_ADD_SEALS = 1033  # fcntl.F_ADD_SEALS exists only from Python 3.12 on for every build
_F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_FUTURE_WRITE = 0x2, 0x4, 0x10


def create_memory(nbytes: int, what: str) -> int:
    """A descriptor of `nbytes` of shared memory, every page of it allocated now rather than at a fault in mid-request.

    Raises ConnectorError where the machine cannot give that much; `what` it is for stands in the message. What is available
    is asked first, because a memory file has no limit of its own: allocating past it would end in the kernel killing some
    process, not in an error.
    """
    available = _available_nbytes()
    if nbytes > available:
        raise ConnectorError(f"{what} of {nbytes} bytes cannot be allocated: {available} bytes of memory are available")
    try:
        descriptor, place = _open_memory()
    except OSError as error:
        raise ConnectorError(f"{what} of {nbytes} bytes cannot be allocated: {error}") from None
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        os.close(descriptor)
        raise ConnectorError(f"{what} of {nbytes} bytes cannot be allocated{place}: {error.strerror}") from None
    return descriptor


def create_arena(nbytes: int) -> int:
    """The descriptor of a new arena, as `create_memory` has it."""
    return create_memory(nbytes, "an arena")


def seal(descriptor: int) -> None:
    """From now on nobody maps this memory writable or changes its size; mappings that exist stay as they are."""
    try:
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_FUTURE_WRITE)
    except PermissionError:
        return  # a file that had a name cannot be sealed


def _open_memory() -> tuple[int, str]:
    """A descriptor, and where it is, for messages."""
    if not wants_named_memory():
        try:
            return os.memfd_create("omnistage", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), ""
        except (AttributeError, OSError):
            pass  # an old kernel, or a sandbox that does not let it be called
    path = SHARED_FOLDER / f"omnistage-{secrets.token_hex(16)}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return descriptor, f" in {SHARED_FOLDER}"


def _available_nbytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
