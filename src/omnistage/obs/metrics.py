"""The figures of a server, kept for Prometheus. Plain numbers come in; text in Prometheus' format goes out.

Every series moves: counters and histograms when a request ends, gauges when they are read. Seconds, tokens and bytes are
in the names. Thread-safe. Knows nothing of requests, stages or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 600.0)


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """What one ended request adds. Times in seconds since arrival; None where there was no such moment."""

    outcome: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    audio_seconds: float = 0.0
    first_text_s: float | None = None
    first_audio_s: float | None = None
    end_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GaugeFigures:
    """The state of the moment. `stages_ready` and `stage_gauges` by stage name, the latter then by the figure's name."""

    open_requests: int
    restarts: int
    stages_ready: Mapping[str, bool]
    stage_gauges: Mapping[str, Mapping[str, float]]


class ServerMetrics:
    """All series of one server, in a registry of its own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "omnistage_requests", "Requests that ended, by outcome", ["outcome"], registry=registry
        )
        self._http = Counter("omnistage_http_responses", "HTTP responses", ["route", "status"], registry=registry)
        self._tokens = Counter(
            "omnistage_tokens", "Tokens, by kind (prompt, cached, completion)", ["kind"], registry=registry
        )
        self._audio = Counter("omnistage_audio_seconds", "Seconds of audio that were made", registry=registry)
        self._ttft = self._seconds("omnistage_time_to_first_text_seconds", "From arrival to the first text")
        self._ttfp = self._seconds("omnistage_time_to_first_audio_seconds", "From arrival to the first samples")
        self._e2el = self._seconds("omnistage_request_seconds", "From arrival to the end of the request")
        self._open = Gauge("omnistage_open_requests", "Requests that have not ended", registry=registry)
        self._restarts = Gauge("omnistage_restarts", "Restarts of stage replicas", registry=registry)
        self._ready = Gauge("omnistage_stage_ready", "1 if the stage is ready", ["stage"], registry=registry)
        self._stage = Gauge("omnistage_stage", "A stage's own figures, by name", ["stage", "figure"], registry=registry)

    def _seconds(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=_SECONDS, registry=self._registry)

    def responded(self, route: str, status: int) -> None:
        """A response was begun on `route` (its template, never what a caller made up)."""
        self._http.labels(route, str(status)).inc()

    def ended(self, figures: RequestFigures) -> None:
        """A request has reached its terminal state."""
        self._requests.labels(figures.outcome).inc()
        for kind, count in (
            ("prompt", figures.prompt_tokens),
            ("cached", figures.cached_tokens),
            ("completion", figures.completion_tokens),
        ):
            self._tokens.labels(kind).inc(count)
        self._audio.inc(figures.audio_seconds)
        if figures.first_text_s is not None:
            self._ttft.observe(figures.first_text_s)
        if figures.first_audio_s is not None:
            self._ttfp.observe(figures.first_audio_s)
        self._e2el.observe(figures.end_s)

    def text(self, gauges: GaugeFigures) -> bytes:
        """Everything, in Prometheus' text format."""
        self._open.set(gauges.open_requests)
        self._restarts.set(gauges.restarts)
        for name, ready in gauges.stages_ready.items():
            self._ready.labels(name).set(ready)
        for name, figures in gauges.stage_gauges.items():
            for figure, value in figures.items():
                self._stage.labels(name, figure).set(value)
        return generate_latest(self._registry)
