"""What a helper may take of the machine, held by the kernel.

Faults pinned: a bound that nothing holds, or one that ends a process which keeps within it.
"""

import signal
import subprocess
import sys

SPIN = """
from omnistage.stages.prepare.bounds import bound_time
bound_time(0.0)
while True:
    pass
"""
FILL = """
from omnistage.stages.prepare.bounds import bound_memory
bound_memory(64 * 2**20)
held = bytes(32 * 2**20)
try:
    bytes(64 * 2**20)
except MemoryError:
    print("no more than", len(held))
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_who_computes_too_long_is_ended() -> None:
    """Fault: a decoder that spins in threads of its own takes all cores until somebody looks."""
    ended = run(SPIN)
    assert ended.returncode == -signal.SIGXCPU and not ended.stderr


def test_who_keeps_within_its_memory_is_not_disturbed() -> None:
    """Fault: libraries that a process has mapped already count as what it takes for a request."""
    assert run(FILL).stdout == "no more than 33554432\n"


def test_a_stricter_limit_of_the_operators_stays() -> None:
    """Fault: a bound of ours raises one that was there."""
    script = FILL.replace("bound_memory(64 * 2**20)", "bound_memory(2**40)")
    lowered = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({2**31}, {2**31}))\n"
    told = run(f"{lowered}{script}\nprint(resource.getrlimit(resource.RLIMIT_AS))").stdout
    assert told.endswith(f"({2**31}, {2**31})\n")
