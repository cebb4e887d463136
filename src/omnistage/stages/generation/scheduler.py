"""Which requests of a generation stage run next: policy without tensors, without torch, without the model.

A step is one batch: the oldest request that holds a slot (stages.seats) and can run, and every younger one that can run with it, in
the total order, while their work together is within `budget`. One unit of work that exceeds the budget runs alone. A request runs
one input per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omnistage.stages.seats import Seats


@dataclass(frozen=True, slots=True)
class Work:
    """The next input of a request: `cost` in the model's units; inputs with equal `key` may share a batch, None may not."""

    cost: int
    key: object


class GenerationScheduler(Seats):
    """See the module. All calls about unknown requests are no-ops."""

    def __init__(self, *, slots: int, budget: int) -> None:
        super().__init__(slots)
        self._budget = budget

    def form_batch(self, work: Mapping[str, Work]) -> tuple[str, ...]:
        """The requests of the next step. `work` has an entry for each of `candidates()`."""
        batch: list[str] = []
        left = self._budget
        key: object = None
        for request_id in self.candidates():
            unit = work[request_id]
            if not batch:
                batch, left, key = [request_id], left - unit.cost, unit.key
            elif key is not None and unit.key == key and unit.cost <= left:
                batch.append(request_id)
                left -= unit.cost
            if key is None or left <= 0:
                break
        return tuple(batch)
