"""What a process occupies, asked of the system: memory, threads, open files; and how it gives memory back. Linux. Knows nothing of
what the process does."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any

LARGE_NBYTES = 128 * 1024
_M_MMAP_THRESHOLD = -3  # of malloc.h


def give_large_memory_back() -> bool:
    """From now on a piece of memory of LARGE_NBYTES or more is the system's again as soon as it is free. By itself glibc moves that
    limit up to whatever was freed last, and a process that passes media on keeps tens of MiB. False where malloc is another's."""
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_NBYTES))
    except (OSError, AttributeError):
        return False


def give_free_memory_back() -> bool:
    """What is free within malloc's heaps is the system's again: once, now, in milliseconds. For who has let go of much that he
    will not need soon, in a process whose other parts want to keep what they free. False where malloc is another's."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return False
    return True


def process_figures() -> dict[str, Any]:
    """This process. `threads` counts all of them, those of libraries too; `thread_names` are Python's."""
    figures = child_figures(os.getpid())
    figures["open_files"] -= 1  # without the one that lists them
    return {**figures, "thread_names": sorted(thread.name for thread in threading.enumerate())}


def child_figures(pid: int) -> dict[str, Any]:
    """Another process of this user. Of one that has ended there is the `pid`."""
    place = Path(f"/proc/{pid}")
    try:
        pages = int((place / "statm").read_text().split()[1])
        threads, files = len(os.listdir(place / "task")), len(os.listdir(place / "fd"))
    except (OSError, IndexError):  # a dead one that nobody has reaped has empty files
        return {"pid": pid}
    return {"pid": pid, "rss_nbytes": pages * os.sysconf("SC_PAGE_SIZE"), "threads": threads, "open_files": files}
