"""What families give to the runtimes."""

from __future__ import annotations

import subprocess
import sys


def test_the_protocols_cost_no_torch() -> None:
    """Fault: the worker of a stage without torch loads it all the same."""
    code = "import sys, omnistage.modeling.protocols; print('torch' in sys.modules)"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert made.stdout.strip() == "False"
