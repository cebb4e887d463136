"""Which text of a request is the wish, and which sides a picture may have."""

from __future__ import annotations

import pytest

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Prompt
from omnistage.modeling.wishes import checked_side, wish_of

USER = {"role": "user", "content": "a cat"}


def test_the_last_turn_of_the_user_is_drawn() -> None:
    """Fault: the answer before it, or the system prompt, is drawn."""
    said = {"role": "assistant", "content": "a dog"}
    assert wish_of(Prompt(messages=({"role": "user", "content": "one"}, said, USER, said))).text == "a cat"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "cat"}]
    wish = wish_of(Prompt(messages=({"role": "user", "content": parts},)))
    assert (wish.text, wish.field) == ("a\ncat", "messages[0].content")


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (Prompt(text="  "), "prompt"),
        (Prompt(token_ids=(1, 2)), "prompt"),
        (Prompt(messages=({"role": "system", "content": "a cat"},)), "messages"),
        (Prompt(messages=(USER, {"role": "user", "content": " "})), "messages[1].content"),
    ],
)
def test_nothing_to_draw(prompt: Prompt, field: str) -> None:
    """Fault: a picture of nothing is drawn, at full price."""
    with pytest.raises(InvalidRequestError) as error:
        wish_of(prompt)
    assert error.value.field == field


@pytest.mark.parametrize(("side", "near"), [(700, "688 or 704"), (481, "480 or 496"), (3, "16")])
def test_sides_between_two_multiples(side: int, near: str) -> None:
    """Fault: a picture of another size than was asked for; a refusal that leaves its reader to guess."""
    assert checked_side("width", 704, 16) == 704
    with pytest.raises(
        InvalidRequestError, match=f"width: {side} is not accepted; .* multiple of 16, the nearest are {near}$"
    ):
        checked_side("width", side, 16)
