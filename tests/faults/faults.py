"""The kinds of faults: how a request orders one, what it may answer then, and whether others are hit too.

A kind that is `violent` kills a worker: whoever was in it may get one error, if its answer had begun, or is run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.faults.clients import Asked

NAMES = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet", "kilo", "lima")
VANISH_S = 0.005
DIED = "died ("
"""In the message of every request that a worker's death has ended."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`word` is put into the prompt. `codes` are the error codes that its request may end with; `told` stands in the message;
    `may_succeed`: it may be answered as if nothing had happened. `heard`: only a request that wants speech meets it."""

    word: str
    codes: tuple[str, ...] = ("stage_failed",)
    told: str = ""
    may_succeed: bool = False
    heard: bool = False
    violent: bool = False


def _failing(kind: str, *places: str, told: str = "told") -> dict[str, Fault]:
    return {f"{kind}@{place}": Fault(f"!{kind}@{place}", told=told, heard=place != "thinker") for place in places}


FAULTS: dict[str, Fault] = {
    "prepare": Fault("!prepare", told="told not to prepare"),
    "refuse": Fault("!refuse@thinker", codes=("invalid_request",), told="refuse"),
    "begin@speaker": Fault("!begin@speaker", told="told not to begin", heard=True),
    **_failing("bridge", "prosody", "speaker", told="the bridge of stage"),
    **_failing("forward", "thinker", "prosody", "speaker"),
    **_failing("short", "thinker", "speaker", told="0 results of 1"),
    **_failing("select", "prosody", "speaker", told="selects failed"),
    **_failing("capture", "prosody", "speaker", told="nothing to copy"),
    **_failing("memory", "thinker", "prosody", "speaker", told="MemoryError"),
    **_failing("allocate", "prosody", "speaker", told="Unable to allocate"),
    "lose": Fault("!lose", told="item", heard=True),
    "double": Fault("!double", may_succeed=True, codes=()),
    "big": Fault("!big@speaker", may_succeed=True, codes=(), heard=True),
    "huge": Fault("!huge@speaker", may_succeed=True, codes=(), heard=True),
    "linger": Fault("!linger@speaker", may_succeed=True, codes=(), heard=True),
    "vanish": Fault("", may_succeed=True, codes=()),
    "leave": Fault("", may_succeed=True, codes=()),
    "slow": Fault("", may_succeed=True, codes=()),
    "hang@prosody": Fault("!hang@prosody", told="has been running for", heard=True, violent=True),
    "hang@speaker": Fault("!hang@speaker", told="has been running for", heard=True, violent=True),
    "exit@thinker": Fault("!exit@thinker", told=DIED, violent=True),
    "exit@speaker": Fault("!exit@speaker", told=DIED, heard=True, violent=True),
}
OFTEN = ("vanish", "leave", "slow", "linger", "double", "big", "huge")
"""Callers' own ways and what strains memory come more often than the rest."""
GENTLE = tuple(name for name, fault in FAULTS.items() if not fault.violent)
VIOLENT = tuple(name for name, fault in FAULTS.items() if fault.violent)


def asked_with(random: Random, number: int, fault: str) -> Asked:
    """A request of random words, modalities, form and behaviour that meets `fault` ("" for none)."""
    # A third of the tones travels through the arena, the others inside messages, where they can be lost and doubled.
    words = random.choices((*NAMES, *["!wide@prosody"] * 6), k=random.randint(1, 7))
    kind = FAULTS.get(fault)
    modalities = random.choice([None, ("text",), ("audio",), ("text", "audio"), ("text", "audio")])
    if kind is not None:
        if kind.word:
            words.insert(random.randint(0, len(words)), kind.word)
        if kind.heard and (modalities is None or "audio" not in modalities):
            modalities = ("text", "audio")
    stream = random.random() < 0.6
    hears = modalities is not None and "audio" in modalities
    return Asked(
        number=number,
        words=tuple(words),
        seed=random.choice([0, 7, random.randrange(2**32)]),
        modalities=modalities,
        stream=stream,
        audio_format=random.choice([None, "wav", "pcm16"]) if hears else None,
        fault=fault,
        leaves_after_s=_leaves_after_s(random, fault),
        slow_for_s=random.uniform(1.0, 4.0) if fault == "slow" else None,
    )


def _leaves_after_s(random: Random, fault: str) -> float | None:
    """Who vanishes does so within 5 ms, some at once; who leaves, later."""
    if fault == "vanish":
        return random.choice([0.0, random.uniform(0, VANISH_S), random.uniform(0, VANISH_S)])
    if fault == "leave":
        return random.uniform(VANISH_S, 0.3)
    return random.uniform(0.1, 0.6) if fault == "linger" and random.random() < 0.7 else None
