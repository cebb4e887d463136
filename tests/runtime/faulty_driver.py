"""A driver process whose machine raises for a request named "poison...", and whose loop stands still for one named "hang...". A
zygote that is asked for is made soon."""

import time

from omnistage.orchestrator.machine import Orchestrator
from omnistage.runtime import engine_process, zygote
from omnistage.wire.messages import Arrived, Command, Event


class Faulty(Orchestrator):
    def handle(self, event: Event) -> list[Command]:
        if isinstance(event, Arrived) and event.request.request_id.startswith("poison"):
            raise ValueError("no such state")
        if isinstance(event, Arrived) and event.request.request_id.startswith("hang"):
            time.sleep(60.0)
        return super().handle(event)


if __name__ == "__main__":
    zygote.QUIET_S = 0.05
    engine_process.Orchestrator = Faulty  # type: ignore[attr-defined]
    engine_process.main()
