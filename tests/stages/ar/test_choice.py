"""How a choice ends, and what it reports."""

from __future__ import annotations

from typing import Any

from omnistage.core.params import SamplingParams
from omnistage.stages.ar.choice import ChoiceState, SampledToken

EOS, STOP_ID = 0, 9
WORDS = {EOS: "<eos>", 1: "one ", 2: "two ", 3: "th", 4: "ree", STOP_ID: "<stop>"}


class Words:
    """A decoder that knows ten words."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(WORDS[token] for token in ids)


def choice(max_tokens: int = 10, **params: Any) -> ChoiceState:
    return ChoiceState(
        0, SamplingParams(**params), eos_token_ids=frozenset([EOS]), max_tokens=max_tokens, decoder=Words()
    )


def say(state: ChoiceState, *tokens: int) -> tuple[str, list[int], str | None]:
    """Pushes tokens until the choice ends: (text, token ids, finish reason)."""
    text, ids = "", []
    for token in tokens:
        report = state.push(SampledToken(token))
        text += report["text"]
        ids += report["token_ids"]
        if state.finish_reason is not None:
            break
    return text, ids, state.finish_reason


def test_the_end_of_text_is_reported_but_not_shown() -> None:
    """Fault: the end token's text stands in the answer, or its id is missing."""
    assert say(choice(), 1, EOS, 2) == ("one ", [1, EOS], "stop")


def test_ignore_eos_goes_on() -> None:
    """Fault: ignore_eos is ignored."""
    assert say(choice(3, ignore_eos=True), 1, EOS, 2) == ("one <eos>two ", [1, EOS, 2], "length")


def test_a_stop_id_ends_and_shows_only_when_asked_for() -> None:
    """Fault: stop ids are not looked at, or always shown."""
    assert say(choice(stop_token_ids=(STOP_ID,)), 1, STOP_ID) == ("one ", [1, STOP_ID], "stop")
    shown = choice(stop_token_ids=(STOP_ID,), include_stop_str_in_output=True)
    assert say(shown, 1, STOP_ID) == ("one <stop>", [1, STOP_ID], "stop")


def reasons(state: ChoiceState, *tokens: int) -> list[Any]:
    """What each report says of the stop reason; "-" where it says nothing."""
    return [state.push(SampledToken(token)).get("stop_reason", "-") for token in tokens]


def test_the_last_report_says_what_ended_the_choice() -> None:
    """Fault: who reads the reports cannot tell an end token from a word that is to be spoken."""
    assert reasons(choice(), 1, EOS) == ["-", EOS]
    assert reasons(choice(stop_token_ids=(STOP_ID,)), 1, STOP_ID) == ["-", STOP_ID]
    assert reasons(choice(stop=("x", "three")), 1, 3, 4) == ["-", "-", "three"]
    assert reasons(choice(2), 1, 2) == ["-", "-"], "the length is no reason"
    assert reasons(choice(2, stop=("th",)), 1, 3) == ["-", "th"], "at the length, a stop string counts"
    shown = choice(stop=("one <stop>",), stop_token_ids=(STOP_ID,), include_stop_str_in_output=True)
    assert reasons(shown, 1, STOP_ID) == ["-", STOP_ID], "a token that ends the choice does so whatever its text is"


def test_a_stop_string_over_two_tokens() -> None:
    """Fault: a stop string is only looked for inside one token's text."""
    assert say(choice(stop=("three",)), 1, 3, 4, 2) == ("one ", [1, 3, 4], "stop")


def test_what_was_kept_back_comes_at_the_end() -> None:
    """Fault: the beginning of a stop string that did not come is lost at the end, by length or by the end of text."""
    assert say(choice(2, stop=("three",)), 1, 3) == ("one th", [1, 3], "length")
    assert say(choice(stop=("three",)), 1, 3, EOS) == ("one th", [1, 3, EOS], "stop")


def test_no_more_than_max_tokens() -> None:
    """Fault: one token too many."""
    assert say(choice(2), 1, 2, 1) == ("one two ", [1, 2], "length")


def test_a_stop_on_the_last_token_is_a_stop() -> None:
    """Fault: the reason says length although the answer was complete."""
    assert say(choice(2), 1, EOS)[2] == "stop"
    assert say(choice(2, stop=("two",)), 1, 2) == ("one ", [1, 2], "stop")


def test_min_tokens_forbids_ends_and_does_not_look_for_stop_strings() -> None:
    """Fault: an answer ends before min_tokens."""
    state = choice(min_tokens=2, stop=("one",), stop_token_ids=(STOP_ID,))
    assert state.forbidden == [EOS, STOP_ID]
    assert state.push(SampledToken(1))["text"] == "one "
    assert state.forbidden == [EOS, STOP_ID]
    state.push(SampledToken(2))
    assert state.forbidden == []
    assert say(state, 1) == ("", [1], "stop")


def test_logprobs_are_reported_only_when_asked_for() -> None:
    """Fault: a key that should be absent, or tuples where plain data is promised."""
    assert "logprobs" not in choice().push(SampledToken(1))
    report = choice(logprobs=1).push(SampledToken(1, -0.5, ((2, -0.25),)))
    assert report["logprobs"] == [{"token_id": 1, "logprob": -0.5, "token": "one ", "top": [[2, -0.25, "two "]]}]


def test_a_stage_without_a_tokenizer_reports_tokens() -> None:
    """Fault: a stage that makes codes instead of text cannot run."""
    state = ChoiceState(1, SamplingParams(), eos_token_ids=frozenset(), max_tokens=1, decoder=None)
    assert state.push(SampledToken(5)) == {"index": 1, "text": "", "token_ids": [5], "finish_reason": "length"}
