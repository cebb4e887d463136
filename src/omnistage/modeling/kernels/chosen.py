"""Which operations this process computes with: the compiled kernels if they are there and wanted, else torch's.

The first start on a machine has none: it runs with torch's while they are compiled in the background, and takes them when
nothing is running (`renewed`), so that no answer is computed in two ways.
"""

from __future__ import annotations

import logging

import torch

from omnistage.config.env import wants_kernels
from omnistage.modeling.kernels import build
from omnistage.modeling.kernels.fallback import TorchOps
from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.linear import Layout

logger = logging.getLogger(__name__)


def chosen_ops(device: torch.device) -> TorchOps:
    """For tensors of `device`; starts the compilation of what is absent, and does not wait for it."""
    if device.type != "cpu" or not wants_kernels():
        return TorchOps()
    if build.built() is None:
        if build.compiler() is not None:
            build.build_soon()
        return TorchOps()
    return renewed(TorchOps(), device)


def chosen_layout() -> Layout:
    """How weights lie that the operations of this machine read fastest: in panels also where kernels are yet to be compiled."""
    if build.compiler() is None:
        return "packed"
    return "panels" if wants_kernels() else "plain"


def renewed(ops: TorchOps, device: torch.device) -> TorchOps:
    """`ops`, or the kernels if they have come. Costs a look at a file."""
    if isinstance(ops, KernelOps) or device.type != "cpu" or not wants_kernels():
        return ops
    path = build.built()
    if path is None:
        return ops
    try:
        return KernelOps(path)
    except OSError as error:
        logger.warning("the kernels cannot be loaded, torch computes instead: %s", error)
        return ops
