"""The figures of a server, kept for Prometheus. Plain numbers come in; text in Prometheus' format goes out.

Every series moves: counters and histograms when an item is handed over, a stage's run or a request ends; gauges when they are
read. Seconds, tokens and bytes are in the names. Items are told by one thread, ends of requests by one; everything else by any.
Knows nothing of requests, stages or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from omnistage.obs.figures import StageFigures
from omnistage.obs.tallies import Counts, CountState, Spreads, SpreadState

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 600.0)
_FINE = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)
_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """What one ended request adds. Times in seconds since arrival, None where there was no such moment; `token_gaps` are (seconds
    since the text before, tokens), `rtf` is the request's duration over that of its audio."""

    outcome: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    audio_seconds: float = 0.0
    first_text_s: float | None = None
    first_audio_s: float | None = None
    end_s: float = 0.0
    tpot_s: float | None = None
    token_gaps: tuple[tuple[float, int], ...] = ()
    rtf: float | None = None
    images: int = 0


@dataclass(frozen=True, slots=True)
class GaugeFigures:
    """The state of the moment. `stages_ready` by stage name; `stage_gauges` by (stage name, replica), then by the figure's name."""

    open_requests: int
    restarts: int
    stages_ready: Mapping[str, bool]
    stage_gauges: Mapping[tuple[str, int], Mapping[str, float]]


class ServerMetrics:
    """All series of one server, in a registry of its own. Hears of stages and edges as an obs.figures.FlowObserver."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = self.counter("requests", "Requests that ended, by outcome", "outcome")
        self._errors = self.counter("errors", "Error objects that went out, by their code", "code")
        self._http = self.counter("http_responses", "HTTP responses", "route", "status")
        self._tokens = self.counter(
            "tokens", "Tokens, by kind (prompt, cached, completion) and outcome", "kind", "outcome"
        )
        self._audio = self.counter("audio_seconds", "Seconds of audio that were made, by outcome", "outcome")
        self._images = self.counter("images", "Pictures that were made, by outcome", "outcome")
        self._ttft = self.histogram("time_to_first_text_seconds", "From arrival to the first text")
        self._ttfp = self.histogram("time_to_first_audio_seconds", "From arrival to the first samples")
        self._tpot = self.histogram("time_per_output_token_seconds", "Mean time of a text token after the first", _FINE)
        self._itl = self.spreads("inter_token_seconds", "Between two text tokens", _FINE).of()
        self._e2el = self.histogram("request_seconds", "From arrival to the end of the request")
        self._rtf = self.histogram("real_time_factor", "Duration of a request / duration of its audio", _RATIOS)
        self._stages = _StageSeries(self)
        self._edges = _EdgeSeries(self)
        self._open = Gauge("omnistage_open_requests", "Requests that have not ended", registry=registry)
        self._restarts = Gauge("omnistage_restarts", "Restarts of stage replicas", registry=registry)
        self._ready = Gauge("omnistage_stage_ready", "1 if the stage is ready", ["stage"], registry=registry)
        self._gauges = Gauge(
            "omnistage_stage", "A stage's own figures, by name", ["stage", "replica", "figure"], registry=registry
        )

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"omnistage_{name}", text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float] = _SECONDS, *labels: str) -> Histogram:
        return Histogram(f"omnistage_{name}", text, labels, buckets=buckets, registry=self._registry)

    def counts(self, name: str, text: str, *labels: str) -> Counts:
        """A counter that every item moves."""
        return Counts(self._registry, f"omnistage_{name}", text, labels)

    def spreads(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Spreads:
        """A histogram that every item moves, or every token."""
        return Spreads(self._registry, f"omnistage_{name}", text, buckets, labels)

    # ---- what the server says of requests ----

    def responded(self, route: str, status: int) -> None:
        """A response was begun on `route` (its template, never what a caller made up)."""
        self._http.labels(route, str(status)).inc()

    def refused(self, code: str) -> None:
        """An error object went out, as a response or as the last event of a stream."""
        self._errors.labels(code).inc()

    def ended(self, figures: RequestFigures) -> None:
        """A request has reached its end, as its consumer saw it."""
        self._requests.labels(figures.outcome).inc()
        for kind, count in (
            ("prompt", figures.prompt_tokens),
            ("cached", figures.cached_tokens),
            ("completion", figures.completion_tokens),
        ):
            if count:
                self._tokens.labels(kind, figures.outcome).inc(count)
        if figures.audio_seconds:
            self._audio.labels(figures.outcome).inc(figures.audio_seconds)
        if figures.images:
            self._images.labels(figures.outcome).inc(figures.images)
        for gap_s, tokens in figures.token_gaps:
            self._itl.add(gap_s / tokens, tokens)
        for histogram, value in (
            (self._ttft, figures.first_text_s),
            (self._ttfp, figures.first_audio_s),
            (self._tpot, figures.tpot_s),
            (self._e2el, figures.end_s),
            (self._rtf, figures.rtf),
        ):
            if value is not None:
                histogram.observe(value)

    # ---- what the runtime says of stages and edges (FlowObserver) ----

    def stage_ended(self, figures: StageFigures) -> None:
        self._stages.ended(figures)

    def item_sent(self, source: str, target: str, nbytes: int) -> None:
        self._edges.sent(source, target, nbytes)

    def item_taken(self, source: str, target: str, transfer_s: float, queue_s: float) -> None:
        self._edges.taken(source, target, transfer_s, queue_s)

    # ---- all of it ----

    def text(self, gauges: GaugeFigures) -> bytes:
        """Everything, in Prometheus' text format. A replica that is gone shows no figures."""
        self._open.set(gauges.open_requests)
        self._restarts.set(gauges.restarts)
        for name, ready in gauges.stages_ready.items():
            self._ready.labels(name).set(ready)
        self._gauges.clear()
        for (name, replica), figures in gauges.stage_gauges.items():
            for figure, value in figures.items():
                self._gauges.labels(name, str(replica), figure).set(value)
        return generate_latest(self._registry)


class _StageSeries:
    """The series of stages and their replicas."""

    def __init__(self, metrics: ServerMetrics) -> None:
        place = ("stage", "replica")
        self._requests = metrics.counter("stage_requests", "Runs that ended, by outcome", *place, "outcome")
        self._errors = metrics.counter("stage_errors", "Runs that failed, by the error's code", *place, "code")
        self._tokens = metrics.counter("stage_tokens", "Tokens, by kind", *place, "kind")
        self._audio = metrics.counter("stage_audio_seconds", "Seconds of audio that were made", *place)
        self._images = metrics.counter("stage_images", "Pictures that were made", *place)
        self._waiting = metrics.histogram("stage_waiting_seconds", "Until the stage got a request", _FINE, *place)
        self._queued = metrics.histogram("stage_queued_seconds", "In the stage, before its first step", _FINE, *place)
        self._prepare = metrics.histogram("stage_prepare_seconds", "Of that, in its processor", _FINE, *place)
        self._running = metrics.histogram("stage_running_seconds", "From its first step to its end", _SECONDS, *place)
        self._forward = metrics.histogram("stage_forward_seconds", "Of that, in the model", _SECONDS, *place)

    def ended(self, figures: StageFigures) -> None:
        place = (figures.stage, str(figures.replica))
        self._requests.labels(*place, figures.outcome).inc()
        if figures.error is not None:
            self._errors.labels(*place, figures.error).inc()
        for kind, count in (
            ("prompt", figures.prompt_tokens),
            ("cached", figures.cached_tokens),
            ("completion", figures.completion_tokens),
        ):
            if count:  # a series that a stage cannot move is none
                self._tokens.labels(*place, kind).inc(count)
        if figures.audio_seconds:
            self._audio.labels(*place).inc(figures.audio_seconds)
        if figures.images:
            self._images.labels(*place).inc(figures.images)
        for histogram, value in (
            (self._waiting, figures.waiting_s),
            (self._queued, figures.queued_s),
            (self._prepare, figures.prepare_s),
            (self._running, figures.running_s),
            (self._forward, figures.forward_s),
        ):
            if value is not None:
                histogram.labels(*place).observe(value)


class _EdgeSeries:
    """The series of edges."""

    def __init__(self, metrics: ServerMetrics) -> None:
        ends = ("source", "target")
        self._items = metrics.counts("edge_items", "Items that were handed over", *ends)
        self._bytes = metrics.counts("edge_bytes", "Bytes of these items, tensors and metadata", *ends)
        self._transfer = metrics.spreads("edge_transfer_seconds", "For which an item was on its way", _FINE, *ends)
        self._queue = metrics.spreads("edge_queue_seconds", "For which an item waited for its target", _FINE, *ends)
        self._known: dict[tuple[str, str], tuple[CountState, CountState, SpreadState, SpreadState]] = {}

    def sent(self, source: str, target: str, nbytes: int) -> None:
        items, total, _, _ = self._of(source, target)
        items.add()
        total.add(nbytes)

    def taken(self, source: str, target: str, transfer_s: float, queue_s: float) -> None:
        _, _, transfer, queue = self._of(source, target)
        transfer.add(transfer_s)
        queue.add(queue_s)

    def _of(self, source: str, target: str) -> tuple[CountState, CountState, SpreadState, SpreadState]:
        """Every item passes here."""
        ends = (source, target)
        known = self._known.get(ends)
        if known is None:
            counts = self._items.of(*ends), self._bytes.of(*ends)
            known = self._known[ends] = (*counts, self._transfer.of(*ends), self._queue.of(*ends))
        return known
