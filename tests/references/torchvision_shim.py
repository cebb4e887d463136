"""Lets torchvision be imported beside a torch for which its operators are not compiled, one without CUDA: they are declared, and
nothing is behind them.

What is written in Python works then (transforms, resizing), which is all that video processors use. To be imported before
torchvision, in the environment of the references alone.
"""

from __future__ import annotations

import torch

_FORWARD = ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
_BACKWARD = tuple(f"_{name}_backward" for name in _FORWARD[2:])

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
if torch.version.cuda is None:
    for _name in (*_FORWARD, *_BACKWARD):
        LIBRARY.define(f"{_name}(Tensor only) -> Tensor")  # its import asks for names, not for what they take
