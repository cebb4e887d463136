"""Stages grouped into the processes that run them."""

from pathlib import Path

from omnistage.config.stage import OutputEdge
from omnistage.runtime.plan import plan_processes
from tests.runtime.harness import stage


def test_stages_that_name_one_process_share_a_worker(tmp_path: Path) -> None:
    """Fault: a shared process that is started once per stage, with the threads or the environment of one of them."""
    plans = plan_processes(
        (
            stage(
                0, "counter", tmp_path, process="a", targets=(1, 2), threads=2, env={"ONE": "1"}, start_timeout_s=5.0
            ),
            stage(1, "voice", tmp_path, process="b", sources=(0,), targets=(2,)),
            stage(2, "picture", tmp_path, process="a", sources=(0, 1), env={"TWO": "2"}, start_timeout_s=7.0),
        ),
        arena_nbytes=4096,
    )
    assert [(plan.name, len(plan.stages), plan.arena_nbytes) for plan in plans] == [("a", 2, 4096), ("b", 1, 4096)]
    first, second = plans
    assert first.upstream == {"b"} and second.upstream == {"a"}
    assert first.threads == 2 and first.environment == {"ONE": "1", "TWO": "2"} and first.start_timeout_s == 12.0
    assert first.title == "stages counter, picture" and second.title == "stage voice"


def test_both_ends_of_an_edge_by_tcp_speak_it(tmp_path: Path) -> None:
    """Fault: a reader without the connector that its items name; a port that nobody needs."""
    sends = (OutputEdge(target=1, connector="tcp"),)
    plans = plan_processes(
        (
            stage(0, "counter", tmp_path, targets=(1,), outputs=sends, host="127.0.0.2"),
            stage(1, "voice", tmp_path, sources=(0,), targets=(2,)),
            stage(2, "picture", tmp_path, sources=(1,)),
        ),
        arena_nbytes=4096,
    )
    assert [plan.tcp_nbytes for plan in plans] == [4096, 4096, None]
    assert [plan.host for plan in plans] == ["127.0.0.2", "127.0.0.1", "127.0.0.1"]
