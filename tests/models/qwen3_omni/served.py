"""Qwen3-Omni with a decoder that obeys words of the prompt, in the registry; then the program that follows, `python -m MODULE ...`.

"!spoil": every run with this request in it raises. "!stall": a run of it goes on until it is interrupted, and gives nothing.
"""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from omnistage.config.stage import GenerationStageConfig
from omnistage.core.params import GenerationParams
from omnistage.core.payload import MultimodalPayload
from omnistage.core.request import OmniRequest
from omnistage.modeling.protocols import Interrupted
from omnistage.models.qwen3_omni import pipeline
from omnistage.models.qwen3_omni.code2wav import Code2Wav
from omnistage.models.qwen3_omni.code2wav import load as load_as_it_is
from omnistage.models.registry import REGISTRY

STALL_S = 60.0


class Obedient:
    """A GenerationModel around the real one. A state is what the request orders ("" for most), and the real state."""

    def __init__(self, real: Code2Wav) -> None:
        self._real = real
        self._ends = threading.Event()

    def begin(self, request: OmniRequest, params: GenerationParams) -> tuple[str, Any]:
        said = repr(request.prompt.messages)
        order = next((word for word in ("!spoil", "!stall") if word in said), "")
        return order, self._real.begin(request, params)

    def batch_key(self, chunk: Mapping[str, Any], state: tuple[str, Any]) -> object:
        return self._real.batch_key(chunk, state[1])

    def cost(self, chunk: Mapping[str, Any]) -> int:
        return self._real.cost(chunk)

    def run(
        self, batch: Sequence[tuple[Mapping[str, Any], tuple[str, Any]]]
    ) -> list[tuple[MultimodalPayload | None, Any]]:
        orders = [order for _, (order, _) in batch]
        if "!spoil" in orders:
            raise ArithmeticError("this sound cannot be made")
        if "!stall" in orders and self._ends.wait(STALL_S):
            self._ends.clear()
            raise Interrupted
        made = self._real.run([(chunk, state) for chunk, (_, state) in batch])
        return [(payload, (order, state)) for order, (payload, state) in zip(orders, made, strict=True)]

    def interrupt(self) -> None:
        self._ends.set()
        self._real.interrupt()


def load(config: GenerationStageConfig) -> Obedient:
    return Obedient(load_as_it_is(config))


_STAGES = pipeline.PIPELINE.stages
PIPELINE = replace(
    pipeline.PIPELINE,
    stages=(*_STAGES[:2], replace(_STAGES[2], loader="tests.models.qwen3_omni.served:load")),
)

if __name__ == "__main__":
    REGISTRY["qwen3_omni_moe"] = "tests.models.qwen3_omni.served:PIPELINE"
    _, python, dash, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
