"""What a process occupies, asked of the system: memory, threads, open files; how it gives memory back; and what the death of its
parent does to it. Linux. Knows nothing of what the process does."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
from pathlib import Path
from typing import Any

LARGE_NBYTES = 128 * 1024
_M_MMAP_THRESHOLD = -3  # of malloc.h
_PR_SET_PDEATHSIG = 1  # of sys/prctl.h
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


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


def mapped_places(path: Path) -> tuple[range, ...]:
    """The addresses at which this process has mapped the file; none where the system does not tell."""
    real, places = str(path.resolve()), []
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return ()
    for line in lines:
        parts = line.split(maxsplit=5)  # an anonymous mapping has no name
        if parts[-1] == real:
            start, end = (int(number, 16) for number in parts[0].split("-"))
            places.append(range(start, end))
    return tuple(places)


def let_go_of_pages(address: int, nbytes: int) -> None:
    """Whole pages of a mapped file leave this process's memory until somebody looks at them again; what was written to a private
    mapping there is lost. The system may keep them for others. Where it refuses, nothing happens."""
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if start < end:
        _madvise(start, end - start, mmap.MADV_DONTNEED)


def live_by_a_life_line() -> None:
    """For a process that ends when its life line does, and by nothing else that is polite: signals of a terminal or of a group are
    ignored. One that has been stopped reads no end, so it goes on when whoever started it dies."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal_at_parents_death(signal.SIGCONT)


def signal_at_parents_death(number: signal.Signals) -> None:
    """From now on this process gets the signal from the kernel when the thread that started it ends. A stopped one gets it too:
    SIGCONT and SIGKILL move it at once."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


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
