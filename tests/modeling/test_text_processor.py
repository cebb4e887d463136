"""Prompts without transformers, compared with transformers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, processors

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.protocols import RepeatableProcessor
from omnistage.modeling.text_processor import TextProcessor, load_text_processor
from omnistage.models.demo.weights import DemoWeights
from tests.tiny.checkpoints import TEXTS, VOCAB_SIZE, write_tokenizer

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße, 🙂!\n"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": " three <|end|> "},
    ],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    return tmp_path


def ids(processor: TextProcessor, **prompt: Any) -> list[int]:
    request = OmniRequest(request_id="r", prompt=Prompt(**prompt), wants=("text",), stage_params={})
    return list(processor(request).token_ids)


def change(folder: Path, **settings: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def expect_equal(folder: Path, vocab_size: int) -> None:
    ours, theirs = load_text_processor(folder, vocab_size, 2048), transformers.AutoTokenizer.from_pretrained(folder)
    for chat in CHATS:
        wanted = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert ids(ours, messages=tuple(chat)) == wanted
    for text in TEXTS:
        assert ids(ours, text=text) == theirs(text)["input_ids"]


def test_prompts_are_those_of_transformers(folder: Path) -> None:
    """Fault: special tokens twice or not at all, a template rendered with other spaces or variables."""
    expect_equal(folder, VOCAB_SIZE)


def test_special_tokens_of_the_tokenizer_are_added_to_text_only(folder: Path) -> None:
    """Fault: a chat begins with two beginnings of text, a plain text with none."""
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    tokenizer.save(str(path))
    expect_equal(folder, VOCAB_SIZE)
    processor = load_text_processor(folder, VOCAB_SIZE, 64)
    assert ids(processor, text="fox")[0] == 0
    assert ids(processor, messages=tuple(CHATS[0]))[0] != 0


def test_a_template_in_a_file_of_its_own_wins(folder: Path) -> None:
    """Fault: an old template beside a new one."""
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0]['content'] }}")
    expect_equal(folder, VOCAB_SIZE)


def test_a_template_among_several_or_in_json(folder: Path) -> None:
    """Fault: a list of templates, or chat_template.json, is not read."""
    change(folder, chat_template=[{"name": "tool_use", "template": "x"}, {"name": "default", "template": "fox"}])
    fox = ids(load_text_processor(folder, VOCAB_SIZE, 64), text="fox")
    assert ids(load_text_processor(folder, VOCAB_SIZE, 64), messages=tuple(CHATS[0])) == fox
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "dog"}))
    dog = ids(load_text_processor(folder, VOCAB_SIZE, 64), text="dog")
    assert ids(load_text_processor(folder, VOCAB_SIZE, 64), messages=tuple(CHATS[0])) == dog


def test_a_beginning_that_the_settings_ask_for(folder: Path) -> None:
    """Fault: add_bos_token is ignored, or adds a second one."""
    change(folder, add_bos_token=True, bos_token={"content": "<|bos|>"})
    processor = load_text_processor(folder, VOCAB_SIZE, 64)
    assert ids(processor, text="fox")[0] == 0
    assert ids(processor, text="<|bos|>fox") == ids(processor, text="fox")


def test_variables_reach_the_template(folder: Path) -> None:
    """Fault: chat_template_kwargs do not arrive."""
    change(folder, chat_template="{{ word }}")
    processor = load_text_processor(folder, VOCAB_SIZE, 64)
    extra = {"chat_template_kwargs": {"word": "fox"}}
    assert ids(processor, messages=tuple(CHATS[0]), additional_information=extra) == ids(processor, text="fox")


def test_what_depends_on_the_clock_is_told(folder: Path) -> None:
    """Fault: prompts that hold the date are kept as if they did not, or no prompts are kept at all."""
    text, messages = Prompt(text="Hi"), Prompt(messages=({"role": "user", "content": "Hi"},))
    processor = load_text_processor(folder, VOCAB_SIZE, 100)
    assert isinstance(processor, RepeatableProcessor)
    assert [processor.depends_on_prompt_alone(prompt) for prompt in (text, messages)] == [True, True]
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%d') }}")
    processor = load_text_processor(folder, VOCAB_SIZE, 100)
    assert [processor.depends_on_prompt_alone(prompt) for prompt in (text, messages)] == [True, False]


def test_content_in_parts_is_one_text(folder: Path) -> None:
    """Fault: a list reaches the template, which writes it down as a list."""
    processor = load_text_processor(folder, VOCAB_SIZE, 64)
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert ids(processor, messages=({"role": "user", "content": parts},)) == ids(
        processor, messages=({"role": "user", "content": "one\ntwo"},)
    )


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ({"text": ""}, "prompt"),
        ({"text": " \n"}, "prompt"),
        ({"text": "fox " * 9000}, "prompt"),
        ({"messages": ({"role": "user", "content": "fox " * 9000},)}, "messages"),
        ({}, "prompt"),
        ({"messages": ()}, "messages"),
        ({"messages": ({"content": "x"},)}, "messages[0].role"),
        ({"messages": ({"role": "user", "content": [{"type": "image_url"}]},)}, "messages[0].content[0].type"),
        ({"messages": ({"role": "user", "content": [{"type": "text"}]},)}, "messages[0].content[0].text"),
        ({"messages": ({"role": "user", "content": ["x"]},)}, "messages[0].content[0]"),
        ({"token_ids": ()}, "prompt_token_ids"),
        ({"token_ids": (1, -1)}, "prompt_token_ids"),
        ({"token_ids": (VOCAB_SIZE,)}, "prompt_token_ids"),
    ],
)
def test_what_cannot_be_read_names_its_field(folder: Path, prompt: dict[str, Any], field: str) -> None:
    """Fault: a bad prompt is read as something else, or fails without a field."""
    with pytest.raises(InvalidRequestError) as caught:
        ids(load_text_processor(folder, VOCAB_SIZE, 64), **prompt)
    assert caught.value.field == field


def test_messages_that_make_no_tokens(folder: Path) -> None:
    """Fault: an empty prompt reaches the model."""
    change(folder, chat_template="")
    with pytest.raises(InvalidRequestError, match="at least one token"):
        ids(load_text_processor(folder, VOCAB_SIZE, 64), messages=tuple(CHATS[0]))


def test_a_model_without_a_template_refuses_messages(folder: Path) -> None:
    """Fault: messages are glued together somehow."""
    change(folder, chat_template=None)
    with pytest.raises(InvalidRequestError, match="no chat template"):
        ids(load_text_processor(folder, VOCAB_SIZE, 64), messages=tuple(CHATS[0]))


def test_the_end_of_text(folder: Path) -> None:
    """Fault: an answer never ends because the end stands in another file."""
    assert load_text_processor(folder, VOCAB_SIZE, 64).eos_token_ids == {1}
    (folder / "config.json").write_text('{"eos_token_id": [1, 4]}')
    assert load_text_processor(folder, VOCAB_SIZE, 64).eos_token_ids == {1, 4}
    (folder / "generation_config.json").write_text('{"eos_token_id": 4}')
    assert load_text_processor(folder, VOCAB_SIZE, 64).eos_token_ids == {4}


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    """Fault: a bare exception of the library."""
    with pytest.raises(BrokenCheckpointError, match=r"has no tokenizer\.json"):
        load_text_processor(tmp_path, VOCAB_SIZE, 64)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BrokenCheckpointError, match="cannot be read as a tokenizer"):
        load_text_processor(tmp_path, VOCAB_SIZE, 64)


@pytest.mark.weights
def test_prompts_of_the_fetched_model(demo_weights: DemoWeights) -> None:
    """Fault: what holds for a tiny tokenizer does not hold for the real one."""
    expect_equal(demo_weights.thinker_dir, 49152)


def test_a_text_that_cannot_fit_is_refused_unread(folder: Path) -> None:
    """Fault: megabytes are tokenised first, which takes seconds in which the stage answers nobody."""
    processor = load_text_processor(folder, VOCAB_SIZE, 64)
    longest = max(map(len, processor.tokenizer.get_vocab()))
    assert len(ids(processor, text="x" * (64 * longest))) > 64  # whether tokens fit is the scheduler's to say
    with pytest.raises(InvalidRequestError, match=f"at most {64 * longest}, more than 64 tokens hold"):
        ids(processor, text="x" * (64 * longest + 1))


def test_another_model_s_tokenizer_is_told_at_the_start(folder: Path) -> None:
    """Fault: the stage loads, and then every prompt is refused as if its caller had written token ids."""
    with pytest.raises(BrokenCheckpointError, match="another model's tokenizer"):
        load_text_processor(folder, VOCAB_SIZE - 64, 64)
