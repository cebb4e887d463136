"""Tokens a second through HTTP, beside vLLM's server: the same client, the same requests, in turns.

vLLM runs in both of its forms, eager as ours computes and compiled as it comes; a row is for the faster one. Of both servers
the CPU seconds of all processes are counted. A server that waits for requests takes nothing to speak of.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.ar import ENVIRONMENT
from benchmarks.checkpoints import checkpoint, text_of
from benchmarks.decoding import LONGEST, prompts_of
from benchmarks.peers import vllm_process
from benchmarks.peers.vllm_server import vllm_server
from benchmarks.rows import Benchmark, Row, Skipped
from benchmarks.servers import Server, serving
from benchmarks.serving import FLAGS, PAIRS, STREAMS, TOKENS
from benchmarks.streams import ask_all, chat_request

GOAL = 1.2


@dataclass(frozen=True, slots=True)
class Run:
    """All answers of one server, once: tokens a second, CPU seconds of the server's processes and of the client."""

    rate: float
    server_s: float
    client_s: float
    texts: tuple[tuple[str, ...], ...]


def beside_vllm(model: str) -> list[Row] | Skipped:
    if vllm_process.interpreter() is None:
        return Skipped(f"{vllm_process.VARIABLE} names no interpreter that has vllm (docs/speed.md)")
    with tempfile.TemporaryDirectory() as scratch:
        folder = checkpoint(model, Path(scratch), torch.float32)
        vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
        prompts = [text_of(prompt) for prompt in prompts_of(STREAMS, vocab_size, LONGEST[model])]
        with serving(str(folder), *FLAGS) as ours:
            ours.wait((200,))
            found = {compiled: _pairs(ours, folder, model, prompts, compiled) for compiled in (False, True)}
    compiled = max(found, key=lambda form: statistics.median(theirs.rate for _, theirs in found[form]))
    others = statistics.median(theirs.rate for _, theirs in found[not compiled])
    return [_row(model, found[compiled], f"{_form(compiled)}; {_form(not compiled)} {others:.0f} tokens/s")]


def _pairs(ours: Server, folder: Path, model: str, prompts: Sequence[str], compiled: bool) -> list[tuple[Run, Run]]:
    """Neighbours: our run, and vLLM's. Both say the same, before anything counts."""
    with vllm_server(folder, "float32", streams=STREAMS, compiled=compiled, environment=ENVIRONMENT) as theirs:
        first = [_run(server, folder, prompts, TOKENS[model]).texts for server in (ours, theirs)]
        equal = sum(mine == other for mine, other in zip(*first, strict=True))
        assert equal == STREAMS, f"only {equal} of {STREAMS} answers are the peer's"
        return [
            (_run(ours, folder, prompts, TOKENS[model]), _run(theirs, folder, prompts, TOKENS[model]))
            for _ in range(PAIRS[model])
        ]


def _run(server: Server, folder: Path, prompts: Sequence[str], tokens: int) -> Run:
    asked = [chat_request(server.port, str(folder), prompt, tokens) for prompt in prompts]
    before_s = server.cpu_s()
    answers = ask_all(server.port, asked)
    rate = len(prompts) * tokens / answers.seconds
    texts = tuple(tuple(text.split()) for text in answers.texts)
    return Run(rate, server.cpu_s() - before_s, answers.cpu_s, texts)


def _row(model: str, pairs: Sequence[tuple[Run, Run]], told: str) -> Row:
    ratios = [mine.rate / theirs.rate for mine, theirs in pairs]
    client_s = [statistics.median(run.client_s for run in side) for side in zip(*pairs, strict=True)]
    return Row(
        _name(model),
        statistics.median(mine.rate for mine, _ in pairs),
        f">= {GOAL}",
        "tokens/s",
        f"{model} float32, {STREAMS} streams of {TOKENS[model]} tokens; {min(ratios):.2f}-{max(ratios):.2f} in {len(pairs)} pairs; "
        f"client's CPU {client_s[0]:.2f} s and {client_s[1]:.2f} s; peer {told}",
        peer=statistics.median(theirs.rate for _, theirs in pairs),
        ratio=statistics.median(ratios),
        env=ENVIRONMENT,
        cpu_s_ours=statistics.median(mine.server_s for mine, _ in pairs),
        cpu_s_peer=statistics.median(theirs.server_s for _, theirs in pairs),
    )


def _form(compiled: bool) -> str:
    return "compiled" if compiled else "eager"


def _name(model: str) -> str:
    return "serve_tokens_vs_vllm_serve" if model == "tiny" else f"serve_tokens_vs_vllm_serve_{model}"


BENCHMARKS = tuple(Benchmark((_name(model),), partial(beside_vllm, model), quick=False) for model in TOKENS)
