"""What a helper may take of the machine for one request: inputs come from strangers, and a few bytes can ask for gigabytes.

The kernel holds both bounds, whatever a library does in its own threads. Memory that is refused is a MemoryError or the end of the
helper, used up time its end; either way it is known whose request it was (prepare.scheduler). Linux.
"""

from __future__ import annotations

import math
import resource
from pathlib import Path


def bound_memory(nbytes: int) -> None:
    """From now on this process gets `nbytes` of memory beyond what it has, and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + nbytes)


def bound_time(seconds: float) -> None:
    """From now on this process, all its threads together, may compute for about so long; then SIGXCPU ends it, without a core file.
    Each call begins anew."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds) + 1)


def _lower(kind: int, limit: int) -> None:
    """Sets the soft limit, as far as the hard one lets it."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
