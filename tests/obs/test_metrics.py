"""Every series moves, and by what was counted."""

from omnistage.obs.metrics import GaugeFigures, RequestFigures, ServerMetrics

QUIET = GaugeFigures(0, 0, {}, {})


def test_every_series_moves() -> None:
    """Fault: a series that is advertised and never changes."""
    metrics = ServerMetrics()
    before = metrics.text(QUIET).decode()
    metrics.responded("/x", 200)
    metrics.ended(RequestFigures("finished", 3, 1, 4, 1.5, 0.1, 0.2, 0.9))
    after = metrics.text(GaugeFigures(2, 1, {"thinker": True}, {"thinker": {"running": 1.0}})).decode()
    names = {line.split()[2] for line in before.splitlines() if line.startswith("# TYPE") and "_created" not in line}

    def values(text: str, name: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith(name) and "_created" not in line]

    assert names
    assert [name for name in sorted(names) if values(before, name) == values(after, name)] == []


def test_what_never_came_is_not_observed() -> None:
    """Fault: a request without speech counts as one whose first sound came at once."""
    metrics = ServerMetrics()
    metrics.ended(RequestFigures("aborted", end_s=0.5))
    text = metrics.text(QUIET).decode()
    assert "omnistage_time_to_first_audio_seconds_count 0.0" in text
    assert "omnistage_request_seconds_count 1.0" in text
