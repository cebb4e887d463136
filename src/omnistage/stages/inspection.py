"""The answer to the control call `debug_state`: what one stage and its process hold. Given by the IO thread, beside the steps.

Plain data of counts, bytes and ids. A stage that hangs in a step is described as well as any other; what its engine holds is told
as of its last step. Changes nothing, and is in nobody's way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from omnistage.connectors.base import Connectors
from omnistage.core.errors import ErrorInfo
from omnistage.obs.process import process_figures
from omnistage.stages.loop import StageLoop
from omnistage.wire.messages import Control, ControlDone


class Preparing(Protocol):
    """What helpers tell of themselves."""

    def debug_state(self) -> dict[str, Any]: ...


def answer(
    message: Control,
    loop: StageLoop,
    connectors: Connectors,
    delayed_items: int,
    preparing: Preparing | None = None,
    *,
    figures: Callable[[], object] = process_figures,
) -> ControlDone:
    """`delayed_items` wait for the memory that they lie in; `preparing` are the helpers of a stage that has some."""
    try:
        result = {
            "process": figures(),
            "connectors": {name: dict(connector.health()) for name, connector in connectors.items()},
            "delayed_items": delayed_items,
            "stage": {**loop.debug_state(), **({} if preparing is None else preparing.debug_state())},
        }
    except Exception as error:  # noqa: BLE001 - a look inside must not end the process that is looked into
        return ControlDone(call_id=message.call_id, stage_id=message.stage_id, error=ErrorInfo.of(error))
    return ControlDone(call_id=message.call_id, stage_id=message.stage_id, result=result)
