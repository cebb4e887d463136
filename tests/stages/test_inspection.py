"""A look inside a worker: what it holds, beside a step that hangs."""

from omnistage.stages.inspection import answer
from omnistage.stages.loop import StageLoop
from omnistage.wire.messages import Cancel, CancelDone, Control, ControlDone
from omnistage.wire.worker import Ready
from tests.fakes import echo_config
from tests.stages.fakes import quiet_door
from tests.stages.test_worker import WHERE, Process, submit

ASK = Control(**WHERE, call_id="look", stage_id=0, name="debug_state")


def test_a_stage_that_hangs_answers_as_well_as_any() -> None:
    """Fault: the one stage that one would look into says nothing, or a request waits for the look."""
    process = Process(echo_config())
    assert process.channel.heard(Ready)
    process.channel.say(submit("stuck", words="hang"))
    assert process.channel.wait_for(lambda: process.worker._loops[0].step_age_s() > 0.05)
    process.channel.say(ASK)
    assert process.channel.heard(ControlDone)
    [done] = process.channel.of(ControlDone)
    assert done.error is None
    assert done.result["stage"]["requests"] == ["stuck"]
    assert done.result["stage"]["step_age_s"] > 0
    assert done.result["process"]["threads"] > 1
    process.channel.say(Cancel(**WHERE, request_id="stuck", attempt=1, stage_id=0))
    assert process.channel.heard(CancelDone)
    process.server.close()
    assert process.ends() is not None


def test_what_cannot_be_looked_at_is_told_and_ends_nothing() -> None:
    """Fault: a fault in the look inside brings the worker down."""

    def broken() -> object:
        raise OSError("no such file")

    loop = StageLoop(3, lambda: None, owner=None, door=quiet_door())  # type: ignore[arg-type, return-value]
    done = answer(ASK, loop, {}, 0, figures=broken)
    assert done.error is not None and "no such file" in done.error.message
    assert answer(ASK, loop, {}, 2).result["stage"] == {"mail": 0, "step_age_s": 0.0}
