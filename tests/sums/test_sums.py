"""Two hundred requests at a real server with real workers, forty of which leave: what it counted is what its callers counted.

`run.run` asks them, once for all tests here; each test compares another kind of figure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from omnistage.runtime.event_log import read_log
from omnistage.wire.messages import CLIENT, Feed, Reply
from tests.sums.callers import Got
from tests.sums.family import RATE, answer_tokens, samples_of, sound_nbytes, text_nbytes, text_of, told_nbytes
from tests.sums.run import LEAVERS, REQUESTS, SECRET, Figures, Seen, run

CHAT = "/v1/chat/completions"
NAMES = {0: "thinker", 1: "speaker", CLIENT: "client"}
EDGES = (("thinker", "speaker"), ("thinker", "client"), ("speaker", "client"))
NEVER_IN_HEALTH = {"step_failures"}
"""Counts faults of the stage runtimes themselves, which nothing that a caller asks can bring about."""
SIZES = {"kv_blocks_total"}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return run(tmp_path_factory.mktemp("sums"))


def total(figures: Figures, name: str, *labels: str) -> float:
    """The sum over all series of that name with these labels ("outcome=finished")."""
    wanted = set(labels)
    return sum(
        value
        for series, value in figures.items()
        if series.partition("{")[0] == f"omnistage_{name}"
        and wanted <= set(series.partition("{")[2].rstrip("}").split(","))
    )


def summed(values: Iterator[float]) -> object:
    return pytest.approx(sum(values), rel=1e-6, abs=1e-6)


def said(got: Got) -> list[int]:
    """The tokens of a whole answer."""
    return answer_tokens(got.asked.prompt, got.asked.max_tokens)


def is_silent(got: Got) -> bool:
    return "!hush" in got.asked.words or not got.asked.hears


def test_the_run_has_everything_in_it(seen: Seen) -> None:
    """Fault: a sum that is right because nothing happened. Whatever is not refused or told to fail is answered in full."""
    assert (len(seen.got), sum(got.left for got in seen.got), seen.exit_code) == (REQUESTS, LEAVERS, 0)
    assert {got.code for got in seen.got} == {"", "invalid_request", "model_not_found", "stage_failed", "timed_out",
                                              "queue_full"}  # fmt: skip
    for got in seen.got:
        if got.finished:
            assert (got.text or got.transcript) == text_of(said(got)), got.asked
            assert got.sound_nbytes == (0 if is_silent(got) else 2 * sum(map(samples_of, said(got))))
    assert sorted({got.metrics["attempts"] for got in seen.got if got.metrics}) == [1, 2]


def test_requests_by_outcome(seen: Seen) -> None:
    """Fault: a request that is counted twice or not at all, and one whose caller has left that counts as answered."""
    outcomes = seen.outcomes()
    assert outcomes["aborted"] == LEAVERS
    for outcome in ("finished", "failed", "aborted", "timed_out"):
        assert total(seen.end, "requests_total", f"outcome={outcome}") == outcomes[outcome], outcome
    assert total(seen.end, "request_seconds_count") == outcomes.total()


def test_errors_by_class_and_responses_by_status(seen: Seen) -> None:
    """Fault: an error of a stream that only its caller counts, and a response that nobody does."""
    codes = Counter(got.code for got in seen.got if got.error is not None)
    assert {code: total(seen.end, "errors_total", f"code={code}") for code in codes} == codes
    assert total(seen.end, "errors_total") == codes.total()
    statuses = Counter(got.status for got in seen.got if not got.left)
    for status in statuses.keys() - {200}:
        assert total(seen.end, "http_responses_total", f"route={CHAT}", f"status={status}") == statuses[status]
    assert total(seen.end, "http_responses_total", f"route={CHAT}") == REQUESTS
    gone = total(seen.end, "http_responses_total", f"route={CHAT}", "status=499")
    assert gone + total(seen.end, "http_responses_total", f"route={CHAT}", "status=200") == statuses[200] + LEAVERS


def test_tokens_and_seconds_of_audio(seen: Seen) -> None:
    """Fault: tokens of requests that were cut short counted as if they had been answered, or lost. Whoever has left does not
    know what was still on its way, so of those the server counts at least what came."""
    finished = [got for got in seen.got if got.finished]
    for kind, counts in {
        "prompt": [got.usage["prompt_tokens"] for got in finished if got.usage],
        "cached": [got.usage["prompt_tokens_details"]["cached_tokens"] for got in finished if got.usage],
        "completion": [got.usage["completion_tokens"] for got in finished if got.usage],
    }.items():
        assert len(counts) == len(finished)
        assert total(seen.end, "tokens_total", f"kind={kind}", "outcome=finished") == sum(counts) > 0, kind
    for outcome, those in {
        "finished": finished,
        "failed": [got for got in seen.got if got.code in ("stage_failed", "queue_full", "invalid_request")],
        "timed_out": [got for got in seen.got if got.code == "timed_out"],
    }.items():
        tokens = total(seen.end, "tokens_total", "kind=completion", f"outcome={outcome}")
        audio_s = total(seen.end, "audio_seconds_total", f"outcome={outcome}")
        assert (tokens, audio_s) == (
            sum(got.tokens for got in those),
            summed(got.sound_nbytes / 2 / RATE for got in those),
        ), outcome
    left = [got for got in seen.got if got.left]
    assert total(seen.end, "tokens_total", "kind=completion", "outcome=aborted") >= sum(got.tokens for got in left) > 0
    audio_s = total(seen.end, "audio_seconds_total", "outcome=aborted")
    assert audio_s >= sum(got.sound_nbytes / 2 / RATE for got in left) > 0


def test_what_callers_are_told_adds_up_to_what_the_server_says(seen: Seen) -> None:
    """Fault: numbers in an answer that are not those of /metrics. Among the calm requests nobody left and nothing failed, so
    every sum and every count is that of what callers were told."""
    got, now = seen.calm_got, seen.calm
    assert all(one.finished and one.metrics and one.usage for one in got)
    told = [one.metrics for one in got if one.metrics]
    for name, key in {
        "request": "e2el_s",
        "time_to_first_text": "ttft_s",
        "time_to_first_audio": "ttfp_s",
        "time_per_output_token": "tpot_s",
    }.items():
        assert total(now, f"{name}_seconds_count") == sum(key in one for one in told), key
        assert total(now, f"{name}_seconds_sum") == summed(one.get(key, 0.0) for one in told), key
    assert total(now, "real_time_factor_sum") == summed(one.get("rtf", 0.0) for one in told)
    assert total(now, "inter_token_seconds_count") == sum(len(said(one)) - 1 for one in got)
    assert total(now, "inter_token_seconds_sum") == summed(
        one.get("tpot_s", 0.0) * (len(said(who)) - 1) for who, one in zip(got, told, strict=True)
    )
    for stage in ("thinker", "speaker"):
        runs = [one["stages"][stage] for one in told if stage in one["stages"]]
        assert total(now, "stage_requests_total", f"stage={stage}", "outcome=finished") == len(runs)
        for key in ("waiting", "queued", "running", "forward"):
            assert total(now, f"stage_{key}_seconds_count", f"stage={stage}") == len(runs)
            assert total(now, f"stage_{key}_seconds_sum", f"stage={stage}") == summed(run[f"{key}_s"] for run in runs)
    for kind in ("prompt", "cached", "completion"):
        assert total(now, "stage_tokens_total", f"kind={kind}") == total(now, "tokens_total", f"kind={kind}")
    assert total(now, "stage_audio_seconds_total") == pytest.approx(total(now, "audio_seconds_total"))


def test_presence_of_times(seen: Seen) -> None:
    """Fault: a time of something that never came: the first sound of an answer without samples, the pace of one token."""
    for got in seen.calm_got:
        metrics = got.metrics or {}
        assert ("ttfp_s" in metrics, "rtf" in metrics) == (not is_silent(got),) * 2
        assert ("tpot_s" in metrics) == (got.asked.max_tokens > 1)


def test_bytes_of_edges_are_those_that_the_stages_have_put(seen: Seen) -> None:
    """Fault: bytes that are counted twice, in an estimate, or without what stands beside the tensors."""
    due = {edge: [0, 0] for edge in EDGES}
    for got in seen.calm_got:
        tokens, edges = said(got), (got.metrics or {})["edges"]
        written = edges["thinker->client"]["items"]
        assert 1 <= written <= len(tokens)
        items = {("thinker", "client"): written}
        known = {("thinker", "client"): text_nbytes(tokens, written)}
        if got.asked.hears:
            hushed = sound_nbytes(tokens) - 4 * sum(map(samples_of, tokens))
            known["thinker", "speaker"] = told_nbytes(tokens)
            known["speaker", "client"] = hushed if is_silent(got) else sound_nbytes(tokens)
        assert {name: (edge["items"], edge["nbytes"]) for name, edge in edges.items()} == {
            f"{source}->{target}": (items.get((source, target), len(tokens)), nbytes)
            for (source, target), nbytes in known.items()
        }
        for edge, nbytes in known.items():
            due[edge][0] += items.get(edge, len(tokens))
            due[edge][1] += nbytes
    for source, target in EDGES:
        ends = (f"source={source}", f"target={target}")
        counted = [total(seen.calm, "edge_items_total", *ends), total(seen.calm, "edge_bytes_total", *ends)]
        assert counted == due[source, target], (source, target)


def test_bytes_of_edges_are_those_that_the_machine_has_sent(seen: Seen) -> None:
    """Fault: items of requests that end badly go uncounted. The record of what was decided holds every one of them."""
    sent: Counter[tuple[str, str]] = Counter()
    items: Counter[tuple[str, str]] = Counter()
    for entry in read_log(seen.record):
        for command in entry.commands:
            if isinstance(command, Feed | Reply) and command.ref is not None:
                edge = NAMES[command.source], NAMES[command.target if isinstance(command, Feed) else CLIENT]
                items[edge] += 1
                sent[edge] += command.ref.nbytes + len(msgspec.msgpack.encode(command.ref.metadata))
    for source, target in EDGES:
        ends = (f"source={source}", f"target={target}")
        assert total(seen.end, "edge_items_total", *ends) == items[source, target]
        assert total(seen.end, "edge_bytes_total", *ends) == sent[source, target] > 0
        taken = total(seen.end, "edge_transfer_seconds_count", *ends)
        assert taken == total(seen.end, "edge_queue_seconds_count", *ends)
        assert total(seen.calm, "edge_items_total", *ends) <= taken <= items[source, target]
        assert total(seen.end, "edge_queue_seconds_sum", *ends) > 0
        assert total(seen.end, "edge_transfer_seconds_sum", *ends) > 0


def test_runs_of_stages_add_up(seen: Seen) -> None:
    """Fault: a run of a stage that ends twice, or in none of the ways that there are."""
    for stage in ("thinker", "speaker"):
        runs = total(seen.end, "stage_requests_total", f"stage={stage}")
        assert runs == total(seen.end, "stage_waiting_seconds_count", f"stage={stage}")
        finished = total(seen.end, "stage_requests_total", f"stage={stage}", "outcome=finished")
        failed = total(seen.end, "stage_requests_total", f"stage={stage}", "outcome=failed")
        for name in ("queued", "running", "forward"):
            assert total(seen.end, f"stage_{name}_seconds_count", f"stage={stage}") == finished
        assert total(seen.end, "stage_errors_total", f"stage={stage}") == failed > 0
        assert total(seen.end, "stage_requests_total", f"stage={stage}", "outcome=cancelled") > 0
    assert total(seen.end, "stage_requests_total", "stage=speaker", "outcome=lost") == 2
    assert total(seen.end, "restarts") == 1


def test_no_figure_is_negative(seen: Seen) -> None:
    """Fault: a time that goes backwards."""
    assert [(name, value) for name, value in seen.end.items() if value < 0] == []
    for got in seen.got:
        metrics = got.metrics or {}
        parts = [*metrics.get("stages", {}).values(), *metrics.get("edges", {}).values(), metrics]
        assert all(value >= 0 for part in parts for value in part.values() if not isinstance(value, dict)), metrics
        for name in ("ttft_s", "ttfp_s"):
            assert metrics.get(name, 0.0) <= metrics.get("e2el_s", 0.0)
        for times in metrics.get("stages", {}).values():
            assert times["forward_s"] <= times["running_s"] <= metrics["e2el_s"]


def test_every_series_has_moved(seen: Seen) -> None:
    """Fault: a series that is advertised and tells nothing. The list is what the server itself shows, before and after."""
    shown = {name for name in (*seen.end, *seen.fresh) if "_created" not in name}
    moved = {name.partition("{")[0] for name in seen.moved}
    assert len(shown) > 100
    assert sorted({name.partition("{")[0] for name in shown} - moved) == []
    figures = {figure_of(name) for name in shown} - {figure_of(name) for name in seen.moved}
    assert sorted(figures - {*SIZES, *NEVER_IN_HEALTH}) == []


def figure_of(series: str) -> str:
    """Which of the stages' own figures a series is; "" for all others."""
    found = re.match(r"omnistage_stage\{figure=(\w+)", series)
    return "" if found is None else found[1]


def test_the_log_tells_of_every_request_and_of_no_prompt(seen: Seen) -> None:
    """Fault: an end that leaves no line, a line that cannot be told whose it is, a prompt in a log."""
    ends = re.findall(r"request (finished|failed|aborted|timed_out)\b.* request=[0-9a-f]{32} .*attempt=\d", seen.words)
    assert Counter(ends) == seen.outcomes()
    assert SECRET not in seen.words and "caller-" not in seen.words and "!refuse" not in seen.words
