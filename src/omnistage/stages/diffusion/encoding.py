"""Conditions become what the model reads: those that are known at once, the others in calls of many, the oldest requests' first.

Knows requests as states that wait for their conditions; what becomes of them is the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omnistage.modeling.diffusion import Condition
from omnistage.stages.careful import CarefulCalls
from omnistage.stages.diffusion.conditions import ConditionCache, copied
from omnistage.stages.diffusion.requests import RequestState
from omnistage.stages.diffusion.runner import DiffusionRunner
from omnistage.stages.encoding_queue import EncodingQueue


@dataclass(slots=True)
class Encoded:
    """What one call did: for whom it worked, who has all of its conditions now, and who has failed."""

    worked_for: dict[str, None] = field(default_factory=dict)
    ready: list[str] = field(default_factory=list)
    failed: list[tuple[str, Exception]] = field(default_factory=list)


class ConditionEncoder:
    """See the module. `budget`: tokens of one call; `limit_nbytes`: of what is kept."""

    def __init__(self, runner: DiffusionRunner, *, stage: str, budget: int, limit_nbytes: int) -> None:
        self._runner = runner
        self._calls = CarefulCalls(stage)
        self._waiting: EncodingQueue[Condition] = EncodingQueue(budget)
        self._recent = ConditionCache(limit_nbytes)

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def num_reruns(self) -> int:
        return self._calls.num_reruns

    def gauges(self) -> dict[str, float]:
        return {
            "condition_hits_total": self._recent.hits,
            "condition_misses_total": self._recent.misses,
            "condition_nbytes": self._recent.nbytes,
        }

    def ask(self, state: RequestState) -> bool:
        """Gives a request the conditions that are known; True if it waits for none."""
        assert state.plan is not None, "it has been planned"
        missing: dict[str, Condition] = {}
        for condition in state.plan.conditions:
            found = self._recent.get(condition.key)
            if found is None:
                missing[condition.key] = condition
            else:
                state.encoded[condition.key] = found
        if missing:
            self._waiting.add(state.request.request_id, state.request.order, missing.values())
        return not missing

    def forget(self, request_id: str) -> None:
        self._waiting.remove(request_id)

    def encode(self, states: Mapping[str, RequestState]) -> Encoded:
        """One call for those that wait."""
        batch = self._waiting.batch()
        made = self._calls.made("encoding conditions", self._runner.encode, batch)
        done = Encoded()
        for condition, found in zip(batch, made, strict=True):
            names = self._waiting.requests_of(condition.key)
            done.worked_for.update(dict.fromkeys(names))
            if isinstance(found, Exception):
                done.failed.extend((name, found) for name in names)
                continue
            self._recent.put(condition.key, found)
            for name in names:
                self._hand_out(states[name], condition, found, done)
        return done

    def _hand_out(self, state: RequestState, condition: Condition, found: Any, done: Encoded) -> None:
        request_id = state.request.request_id
        state.encoded[condition.key] = copied(found)
        if self._waiting.take(request_id, condition.key):
            done.ready.append(request_id)
