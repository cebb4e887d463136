"""Every series moves, and by what was counted; and the page that tells of them tells of all."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from omnistage.obs.figures import StageFigures
from omnistage.obs.metrics import GaugeFigures, RequestFigures, ServerMetrics

QUIET = GaugeFigures(0, 0, {}, {})


def moved() -> ServerMetrics:
    """Metrics that have heard of everything once."""
    metrics = ServerMetrics()
    metrics.responded("/x", 200)
    metrics.refused("invalid_request")
    metrics.ended(RequestFigures("finished", 3, 1, 4, 1.5, 0.1, 0.2, 0.9, 0.3, ((0.2, 2),), 0.6, 2))
    metrics.stage_ended(StageFigures("thinker", 0, "failed", "stage_failed", 3, 1, 4, 1.5, 2, 0.1, 0.2, 0.15, 0.3, 0.4))
    metrics.item_sent("thinker", "speaker", 100)
    metrics.item_taken("thinker", "speaker", 0.1, 0.2)
    return metrics


BUSY = GaugeFigures(2, 1, {"thinker": True}, {("thinker", 1): {"running": 1.0}})


def test_every_series_moves() -> None:
    """Fault: a series that is advertised and never changes."""
    before = ServerMetrics().text(QUIET).decode()
    after = moved().text(BUSY).decode()
    names = {line.split()[2] for line in before.splitlines() if line.startswith("# TYPE") and "_created" not in line}

    def values(text: str, name: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith(name) and "_created" not in line]

    assert names
    assert [name for name in sorted(names) if values(before, name) == values(after, name)] == []


def test_the_page_tells_of_every_series_and_its_labels() -> None:
    """Fault: a series that nobody can look up, or one that is described and does not exist."""
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    table = page.partition("| series |")[2].partition("\n\n")[0]
    told = {
        name: set(filter(None, labels.split(","))) for name, labels in re.findall(r"`(\w+)\{?([\w,]*)\}?` \|", table)
    }
    shown: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(moved().text(BUSY).decode()):
        if not family.name.endswith("_created"):
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            shown[family.name.removeprefix("omnistage_")] = labels
    assert told == shown


def test_what_never_came_is_not_observed() -> None:
    """Fault: a request without speech counts as one whose first sound came at once."""
    metrics = ServerMetrics()
    metrics.ended(RequestFigures("aborted", end_s=0.5))
    text = metrics.text(QUIET).decode()
    assert "omnistage_time_to_first_audio_seconds_count 0.0" in text
    assert "omnistage_request_seconds_count 1.0" in text


def test_gaps_count_once_per_token() -> None:
    """Fault: a piece of many tokens weighs as one, so that a server which merges pieces looks slow."""
    metrics = ServerMetrics()
    metrics.ended(RequestFigures("finished", token_gaps=((0.4, 4), (0.1, 1))))
    lines = metrics.text(QUIET).decode().splitlines()
    assert "omnistage_inter_token_seconds_count 5.0" in lines
    assert "omnistage_inter_token_seconds_sum 0.5" in lines


def test_a_replica_that_is_gone_shows_no_figures() -> None:
    """Fault: the last words of a dead worker stay on show."""
    metrics = ServerMetrics()
    metrics.text(GaugeFigures(0, 0, {}, {("thinker", 0): {"running": 3.0}}))
    assert 'figure="running"' not in metrics.text(QUIET).decode()


def test_a_run_that_did_not_end_by_itself_has_no_times() -> None:
    """Fault: cancelled runs pull the times of a stage towards zero."""
    metrics = ServerMetrics()
    metrics.stage_ended(StageFigures("thinker", 0, "cancelled", waiting_s=2.0))
    text = metrics.text(QUIET).decode()
    assert 'omnistage_stage_waiting_seconds_sum{replica="0",stage="thinker"} 2.0' in text
    assert "omnistage_stage_running_seconds_count{" not in text
