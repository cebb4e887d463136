"""What a process occupies, asked of the system: memory, threads, open files. Linux. Knows nothing of what it does."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any


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
