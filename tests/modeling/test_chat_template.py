"""Chat templates: what they may do, and how they refuse."""

from __future__ import annotations

import datetime as dt

import pytest

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError
from omnistage.modeling.chat_template import ChatTemplate

HI = [{"role": "user", "content": "hi"}]


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}, where="here").render(HI, **variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>hi"),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{% for m in messages %}\n    {{ m['role'] }}\n{% endfor %}", "    user\n"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'ä': '<'} | tojson }}", '{"ä": "<"}'),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        ("{{ strftime_now('%Y') }}", str(dt.datetime.now().year)),
        ("{{ tools is none }}{{ unknown is defined }}", "TrueFalse"),
    ],
)
def test_what_templates_use(source: str, expected: str) -> None:
    """Fault: a variable, filter, tag or space that transformers would give is missing."""
    assert render(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [("{{ messages[0].content }}", True), ("{{ strftime_now('%d') }}", False), ("{{ [1, 2] | random }}", False)],
)
def test_templates_that_look_at_more_than_the_messages(source: str, expected: bool) -> None:
    """Fault: a prompt with the date of the day before yesterday, out of a cache."""
    assert ChatTemplate(source, {}, where="here").is_repeatable is expected


def test_variables_of_the_caller_win() -> None:
    """Fault: chat_template_kwargs are ignored."""
    assert render("{{ thinking }}{{ add_generation_prompt }}", thinking=1, add_generation_prompt=False) == "1False"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content.nothing.more }}", "nothing"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
    ],
)
def test_a_template_that_refuses_or_fails_is_the_callers_error(source: str, reason: str) -> None:
    """Fault: a template's exception ends the worker; a template reaches out of its sandbox."""
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        render(source)
    assert caught.value.field == "messages"


def test_a_template_that_is_none_is_named() -> None:
    """Fault: a syntax error in a model's file looks like the caller's."""
    with pytest.raises(BrokenCheckpointError, match="chat template of here"):
        render("{% if %}")
