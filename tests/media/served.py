"""Puts the pipeline `media` into the registry, then is the program that follows on its command line, `python -m MODULE ...`."""

from __future__ import annotations

import runpy
import sys

from omnistage.models.registry import REGISTRY

if __name__ == "__main__":
    REGISTRY["media"] = "tests.media.family:PIPELINE"
    _, python, dash, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
