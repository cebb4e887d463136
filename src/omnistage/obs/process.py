"""What this process occupies, asked of the system: memory, threads, open files. Linux. Knows nothing of what it does."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any


def process_figures() -> dict[str, Any]:
    """`threads` counts all of them, those of libraries too; `thread_names` are Python's."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "pid": os.getpid(),
        "rss_nbytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "threads": len(os.listdir("/proc/self/task")),
        "thread_names": sorted(thread.name for thread in threading.enumerate()),
        "open_files": len(os.listdir("/proc/self/fd")) - 1,  # without the one that lists them
    }
