"""A family without torch whose stages run in real workers: a counter that makes items, and makers that pass them on.

What a request wants of the counter stands in its prompt: `items`, `pause_s` before each, `samples` per item, `grips` (nothing
else of its process runs any more, as when a library hangs and does not let go of the interpreter). Each run of a
model appends a line to the file `steps` in the folder that the stage's `model_path` names, so a test can count them.
"""

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from omnistage.core.errors import BrokenCheckpointError
from omnistage.core.payload import MultimodalPayload, Tensor
from omnistage.modeling.progress import tell_bytes
from omnistage.modeling.protocols import StageInput


class Maker:
    """Multiplies the samples it gets by `factor`; item `fail_at` raises; requests run together where there is a `batch_key`.
    The state is the number of items made."""

    def __init__(self, config: Any) -> None:
        self.extras = config.extras
        self.steps = Path(config.model_path) / f"steps-{config.model_stage}"

    def begin(self, request: Any, params: Any) -> int:
        return 0

    def batch_key(self, chunk: Any, state: int) -> object:
        return self.extras.get("batch_key")

    def cost(self, chunk: Any) -> int:
        return 1

    def interrupt(self) -> None: ...

    def run(self, batch: Any) -> list[tuple[MultimodalPayload | None, int]]:
        made: list[tuple[MultimodalPayload | None, int]] = []
        for chunk, state in batch:
            with self.steps.open("a") as file:
                file.write(f"{chunk['request_id']} {state}\n")
            if self.extras.get("fail_at") == state:
                raise ValueError("this item cannot be made")
            if chunk.get("grips"):
                ctypes.PyDLL(None).sleep(60)
            time.sleep(chunk["pause_s"] + self.extras.get("pause_s", 0.0))
            samples = np.asarray(chunk["samples"], np.float32) * self.extras.get("factor", 1)
            metadata = {"request_id": chunk["request_id"]}
            made.append((MultimodalPayload({"samples": Tensor.of(samples)}, metadata), state + 1))
        return made


def load(config: Any) -> Maker:
    return Maker(config)


def load_broken(config: Any) -> Maker:
    raise BrokenCheckpointError(f"no weights in {config.model_path}")


def load_together(config: Any) -> Maker:
    """Waits until as many stages load as `together` says and the file `go` is there, and tells then what it has read."""
    folder, deadline = Path(config.model_path), time.monotonic() + 10.0
    (folder / f"loads-{config.model_stage}").touch()
    while len(list(folder.glob("loads-*"))) < config.extras["together"]:
        assert time.monotonic() < deadline, "the others do not load"
        time.sleep(0.02)
    tell_bytes(3 * 10**7, 10**8)
    while not (folder / "go").exists():
        assert time.monotonic() < deadline + 10.0
        time.sleep(0.02)
    return Maker(config)


def load_crashing(config: Any) -> Maker:
    os.write(2, b"the library says goodbye\n")
    os._exit(7)


def load_crashing_later(config: Any) -> Maker:
    """From the second time on."""
    with (Path(config.model_path) / "loads").open("a") as file:
        file.write(".")
        if file.tell() > 1:
            load_crashing(config)
    return Maker(config)


def load_slowly(config: Any) -> Maker:
    time.sleep(60)
    return Maker(config)


def load_processor(config: Any) -> Any:
    def process(request: Any) -> list[StageInput]:
        asked = request.prompt.additional_information
        samples = np.arange(asked.get("samples", 4), dtype=np.float32)
        one = {
            "samples": samples,
            "pause_s": asked.get("pause_s", 0.0),
            "grips": asked.get("grips", False),
            "request_id": request.request_id,
        }
        return [StageInput(one) for _ in range(asked.get("items", 3))]

    return process


def bridge(state: Any, source: int, seq: int, payload: Any, last: bool) -> tuple[Any, list[StageInput]]:
    if payload is None:
        return state, []
    samples = np.array(payload.numpy("samples"))
    return state, [StageInput({"samples": samples, "pause_s": 0.0, "request_id": payload.metadata["request_id"]})]
