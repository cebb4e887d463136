"""What a server leaves of its engine: tokens a second through HTTP, and a step's time inside the worker, beside the same engine
without a server. Both sides in processes of their own, in turns, over the same requests.

Many clients stream at once (benchmarks.streams), all from one thread of this process, which takes its share of the machine too. The
texts that come are those of the tokens that the offline engine makes, or there is no row. A step is, on both sides, one in which
every request gets a token: the worker's own count and clock from the moment when the last answer has begun until the first ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from benchmarks.ar import ENVIRONMENT
from benchmarks.asked import AskedProcess, asked
from benchmarks.checkpoints import checkpoint, text_of
from benchmarks.decoding import LONGEST, prompts_of
from benchmarks.rows import Benchmark, Row
from benchmarks.servers import Server, serving
from benchmarks.streams import Answers, ask_all, chat_request

STREAMS = 32
TOKENS = {"tiny": 192, "55m": 64}
PAIRS = {"tiny": 5, "55m": 3}
STEP_BATCHES = {"tiny": (1, 8, 32), "55m": (32,)}
STEP_GOAL = 1.1
TOKENS_GOAL = {"tiny": 0.8, "55m": 0.95}
FLAGS = (
    *("--dtype", "float32", "--threads", "1", "--max-num-seqs", str(STREAMS), "--max-num-batched-tokens", "512"),
    *("--max-model-len", "1024", "--kv-cache-bytes", str(2**31), "--block-size", "32", "--no-enable-prefix-caching"),
    "--debug",
)
"""As benchmarks.decoding.EngineSide has it; `--debug` opens the count of steps."""


@dataclass(slots=True)
class StepsState:
    """The worker's own count of steps between two moments of a run."""

    server: Server
    counts: list[dict[str, float]] = field(default_factory=list)

    def look(self) -> None:
        """Called twice."""
        workers = json.loads(self.server.ask("GET", "/debug/state").read())["workers"]
        ((_, worker),) = workers.items()
        ((_, stage),) = worker["stages"].items()
        self.counts.append(stage)

    def mean_s(self, name: str) -> float:
        """Seconds of `name` for each step."""
        before, after = self.counts
        return (after[name] - before[name]) / (after["steps_total"] - before["steps_total"])


@dataclass(slots=True)
class Sides:
    """A server and an offline engine over one folder; `prompts` by the number of streams."""

    server: Server
    offline: AskedProcess
    folder: Path
    vocab_size: int
    model: str

    def served(self, streams: int, tokens: int, look: Callable[[], None] = lambda: None) -> Answers:
        asked = [
            chat_request(self.server.port, str(self.folder), text_of(prompt), tokens)
            for prompt in self._prompts(streams)
        ]
        return ask_all(self.server.port, asked, look)

    def alone(self, streams: int, tokens: int) -> dict[str, float]:
        """Seconds and CPU seconds of the offline engine, and its step."""
        found = self.offline.ask({"prompts": self._prompts(streams), "count": tokens})
        return {name: found[name] for name in ("seconds", "cpu_s", "step_s")}

    def check(self, streams: int, tokens: int) -> None:
        """Both sides say the same, or the one that is faster may only be wrong."""
        found = self.offline.ask({"prompts": self._prompts(streams), "count": tokens})
        texts = [text.split() for text in self.served(streams, tokens).texts]
        assert texts == [text_of(answer).split() for answer in found["tokens"]], "the server answers something else"

    def _prompts(self, streams: int) -> list[list[int]]:
        return prompts_of(streams, self.vocab_size, LONGEST[self.model])


@contextlib.contextmanager
def sides(model: str, *flags: str) -> Iterator[Sides]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = checkpoint(model, Path(scratch), torch.float32)
        vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
        command = [sys.executable, "-m", "benchmarks.offline", str(folder), "float32"]
        with (
            asked(command, {**os.environ, **ENVIRONMENT}) as offline,
            serving(str(folder), *FLAGS, *flags) as server,
        ):
            server.wait((200,))
            yield Sides(server, offline, folder, vocab_size, model)


def beside_offline(model: str) -> list[Row]:
    with sides(model) as both:
        both.check(STREAMS, TOKENS[model])
        return [*(_step(both, batch) for batch in STEP_BATCHES[model]), _tokens(both)]


def _step(both: Sides, batch: int) -> Row:
    tokens, ours, turns, theirs = TOKENS[both.model], [], [], []
    for _ in range(PAIRS[both.model]):
        steps = StepsState(both.server)
        both.served(batch, tokens, steps.look)
        ours.append(steps.mean_s("step_seconds_total"))
        turns.append(steps.mean_s("turn_seconds_total"))
        theirs.append(both.alone(batch, tokens)["step_s"])
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return Row(
        f"serve_step_vs_offline_{both.model}_b{batch}",
        1e3 * statistics.median(ours),
        f"<= {STEP_GOAL}",
        "ms",
        f"{both.model} float32, {batch} streams; {min(ratios):.2f}-{max(ratios):.2f} in {len(ratios)} pairs; with mail and "
        f"reports {1e3 * statistics.median(turns):.2f} ms",
        peer=1e3 * statistics.median(theirs),
        ratio=statistics.median(ratios),
        env=ENVIRONMENT,
    )


def _tokens(both: Sides) -> Row:
    count, pairs = TOKENS[both.model], PAIRS[both.model]
    before, client_s, events, rates, alone = both.server.cpu_s(), 0.0, 0, [], []
    for _ in range(pairs):
        answers = both.served(STREAMS, count)
        client_s, events = client_s + answers.cpu_s, answers.events
        rates.append(STREAMS * count / answers.seconds)
        alone.append(both.alone(STREAMS, count))
    rates_alone = [STREAMS * count / found["seconds"] for found in alone]
    ratios = [mine / other for mine, other in zip(rates, rates_alone, strict=True)]
    suffix = "" if both.model == "tiny" else f"_{both.model}"
    return Row(
        f"serve_tokens_vs_offline{suffix}",
        statistics.median(rates),
        f">= {TOKENS_GOAL[both.model]}",
        "tokens/s",
        f"{both.model} float32, {STREAMS} streams of {count} tokens in {events} events; {min(ratios):.2f}-{max(ratios):.2f} in "
        f"{pairs} pairs; client's CPU {client_s / pairs:.2f} s; peer: the engine alone, one process",
        peer=statistics.median(rates_alone),
        ratio=statistics.median(ratios),
        env=ENVIRONMENT,
        cpu_s_ours=(both.server.cpu_s() - before) / pairs,
        cpu_s_peer=statistics.median(found["cpu_s"] for found in alone),
    )


def _names(model: str) -> tuple[str, ...]:
    suffix = "" if model == "tiny" else f"_{model}"
    return (
        *(f"serve_step_vs_offline_{model}_b{batch}" for batch in STEP_BATCHES[model]),
        f"serve_tokens_vs_offline{suffix}",
    )


BENCHMARKS = tuple(Benchmark(_names(model), partial(beside_offline, model), quick=model == "tiny") for model in TOKENS)
