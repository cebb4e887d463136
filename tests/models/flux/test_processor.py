"""Ids are those of transformers' tokenizers, padded and cut as diffusers does; what the models cannot read is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omnistage.core.errors import BrokenCheckpointError, InvalidRequestError
from omnistage.models.flux.processor import load_processor
from tests.models.easel import Easel, stage_config
from tests.models.flux.drawing import Asked

TEXTS = (
    "a cat",
    "A FOX, it's 2024!",
    "zwei Hunde,  日本 🙂\n\ttab e\u0301",
    "<|endoftext|> in a cat",
    "</s> x <pad>",
    "dogs " * 100,
)


def data_of(easel: Easel, asked: Asked) -> dict[str, Any]:
    (made,) = easel.processor(asked.request)
    return dict(made.data)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_transformers(dev: Easel, dev_pipeline: Any, text: str) -> None:
    """Fault: a vocabulary whose words are cut otherwise; another padding; a long text that does not end with its last token."""
    data = data_of(dev, Asked(prompt=text))
    for tokenizer, name, length in ((dev_pipeline.tokenizer, "clip", 77), (dev_pipeline.tokenizer_2, "t5", 512)):
        expected = tokenizer(text, padding="max_length", max_length=length, truncation=True).input_ids
        assert data[f"positive_{name}"].tolist() == expected
    assert "negative_key" not in data


def test_a_negative_prompt(schnell: Easel) -> None:
    """Fault: an empty one is none; a condition is known by half of what it is made of."""
    data = data_of(schnell, Asked(prompt="a cat", scale=2.0))
    assert len(data["negative_t5"]) == 256 and data["negative_t5"].tolist()[:2] == [1, 0]
    assert data["negative_key"] != data["positive_key"]
    again = data_of(schnell, Asked(prompt="a red fox", scale=2.0, negative="a cat", seed=2))
    assert again["negative_key"] == data["positive_key"]
    long = [data_of(schnell, Asked(prompt="a " * 100 + end)) for end in ("cat", "dog")]
    assert long[0]["positive_clip"].tolist() == long[1]["positive_clip"].tolist()
    assert long[0]["positive_key"] != long[1]["positive_key"]


def test_a_text_that_is_too_long(dev: Easel, schnell: Easel) -> None:
    """Fault: the end of a prompt is cut off without a word, or megabytes are read before they are refused."""
    with pytest.raises(InvalidRequestError, match=r"prompt: 'a text of 601 tokens' .* accepted: at most 512"):
        dev.processor(Asked(prompt="a " * 600).request)
    with pytest.raises(InvalidRequestError, match=r"negative_prompt: .* accepted: at most 256"):
        schnell.processor(Asked(negative="a " * 300, scale=2.0).request)
    with pytest.raises(InvalidRequestError, match="of 2000000 characters"):
        dev.processor(Asked(prompt="a " * 10**6).request)


def test_a_tokenizer_without_padding(dev_folder: Path, tmp_path: Path) -> None:
    """Fault: prompts are padded with whatever has id 0."""
    for part in dev_folder.iterdir():
        (tmp_path / part.name).symlink_to(part)
    own = tmp_path / "tokenizer_2"
    own.unlink()
    own.mkdir()
    (own / "tokenizer.json").symlink_to(dev_folder / "tokenizer_2" / "tokenizer.json")
    (own / "tokenizer_config.json").write_text('{"pad_token": "<none>"}')
    with pytest.raises(BrokenCheckpointError, match="pad_token is '<none>'; accepted: a token of the vocabulary"):
        load_processor(stage_config(tmp_path))


def test_reading_prompts_takes_neither_torch_nor_transformers(dev_folder: Path) -> None:
    """Fault: every helper takes seconds to start and hundreds of megabytes."""
    said = (
        "import sys\n"
        "from omnistage.config.stage import DiffusionStageConfig as Config\n"
        "from omnistage.core.request import OmniRequest, Prompt\n"
        "from omnistage.models.flux.processor import load_processor\n"
        f"config = Config(stage_id=0, model_stage='p', model_path={str(dev_folder)!r}, loader='', process='p')\n"
        "load_processor(config)(OmniRequest(request_id='r', prompt=Prompt(text='a cat'), wants=('image',), stage_params={}))\n"
        "print(sorted({'torch', 'transformers', 'diffusers'} & set(sys.modules)))"
    )
    made = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, timeout=120, check=True)
    assert made.stdout == "[]\n"
