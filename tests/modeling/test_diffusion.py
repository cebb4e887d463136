"""What a diffusion family gives to the runtime."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import torch

from omnistage.modeling.diffusion import Denoising, Row


def test_the_protocol_costs_no_torch() -> None:
    """Fault: a helper that imports a family's processor loads torch with the protocol of its model."""
    code = "import sys, omnistage.modeling.diffusion; print('torch' in sys.modules)"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert made.stdout.strip() == "False"


def test_a_row_reads_its_own_branch_and_step() -> None:
    """Fault: a row of the negative branch is denoised under the positive one, or at the first timestep for ever."""
    picture = Denoising(torch.zeros(1), (900.0, 500.0, 100.0), SimpleNamespace(), ("a cat", "blurred"))
    row = Row(picture, branch=1, step=2)
    assert (row.condition, row.timestep) == ("blurred", 100.0)
