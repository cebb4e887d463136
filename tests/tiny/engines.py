"""An AR engine over a small folder, driven by hand: submit, step, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnistage.config.stage import ARStageConfig
from omnistage.core.errors import ErrorInfo
from omnistage.core.params import SamplingParams
from omnistage.core.request import OmniRequest, Prompt, Usage
from omnistage.stages.ar.build import build_ar_engine
from omnistage.stages.ar.engine import ARStageEngine
from omnistage.stages.base import StageOutput, StageRequest
from omnistage.wire.messages import CLIENT

DEFAULTS: dict[str, Any] = {
    "stage_id": 0,
    "model_stage": "llm",
    "process": "main",
    "loader": "omnistage.models.causal_lm.loader:load",
    "processor": "omnistage.models.causal_lm.processor:load_processor",
    "kv_cache_bytes": 4 * 2**20,
    "block_size": 16,
    "max_num_seqs": 32,
    "max_model_len": 256,
}


def stage_config(folder: Path, **changes: Any) -> ARStageConfig:
    return ARStageConfig(model_path=str(folder), **{**DEFAULTS, **changes})


def build(folder: Path, **changes: Any) -> ARStageEngine:
    return build_ar_engine(stage_config(folder, **changes))


def greedy(max_tokens: int | None, **changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **changes)


def stage_request(
    name: str,
    prompt: Prompt | Sequence[int],
    params: SamplingParams,
    arrival: int = 0,
    *,
    targets: Iterable[int] = (CLIENT,),
) -> StageRequest:
    whole = prompt if isinstance(prompt, Prompt) else Prompt(token_ids=tuple(prompt))
    request = OmniRequest(request_id=name, prompt=whole, wants=("text",), stage_params={0: params})
    return StageRequest(request, 0, 0, (0, arrival), frozenset(targets))


@dataclass
class Heard:
    """Everything that came of one request, joined."""

    outputs: list[StageOutput] = field(default_factory=list)

    def choices(self, index: int) -> list[dict[str, Any]]:
        captures = [output.capture for output in self.outputs if output.capture is not None]
        return [c for capture in captures for c in capture.metadata.get("choices", ()) if c["index"] == index]

    def tokens(self, index: int = 0) -> list[int]:
        return [token for choice in self.choices(index) for token in choice["token_ids"]]

    def text(self, index: int = 0) -> str:
        return "".join(choice["text"] for choice in self.choices(index))

    def logprobs(self, index: int = 0) -> list[dict[str, Any]]:
        return [entry for choice in self.choices(index) for entry in choice["logprobs"]]

    def reason(self, index: int = 0) -> str | None:
        reason: str | None = self.choices(index)[-1]["finish_reason"]
        return reason

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[-1].finish_reason

    @property
    def usage(self) -> Usage:
        return self.outputs[-1].usage

    @property
    def error(self) -> ErrorInfo | None:
        return self.outputs[-1].error


def drain(
    engine: ARStageEngine, each_step: Callable[[int], None] = lambda step: None, max_steps: int = 5000
) -> dict[str, Heard]:
    """Steps until there is nothing to do; `each_step` is called before every step with its number."""
    heard: dict[str, Heard] = {}
    for step in range(max_steps):
        each_step(step)
        if not engine.has_work():
            return heard
        for output in engine.step():
            heard.setdefault(output.request_id, Heard()).outputs.append(output)
    raise AssertionError(f"still at work after {max_steps} steps")


def answer(engine: ARStageEngine, prompt: Prompt | Sequence[int], params: SamplingParams) -> Heard:
    """One request alone."""
    engine.add(stage_request("only", prompt, params))
    return drain(engine)["only"]


def answers(engine: ARStageEngine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[Heard]:
    """Several requests at once, in order of arrival."""
    for arrival, prompt in enumerate(prompts):
        engine.add(stage_request(f"r{arrival}", prompt, params, arrival))
    heard = drain(engine)
    return [heard[f"r{arrival}"] for arrival in range(len(prompts))]
