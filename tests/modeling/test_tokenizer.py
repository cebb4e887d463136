"""Tokenizers of folders with and without tokenizer.json say what transformers' own say."""

import json

import pytest

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.tokenizer import load_tokenizer
from tests.tiny.flux import write_clip_tokenizer
from tests.tiny.qwen3_omni import SPECIAL_TOKENS, train_tokenizer

TEXTS = [
    "system\nuser\nassistant",
    "Hello,  world!\n\n  It's 1234 o'clock\tnow.   ",
    "Schöne Grüße: e\u0301 is not é before it is normalised. 日本語 🙂",
    "<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|>What?<|im_end|>\n",
]


def vocabulary_folder(folder, **settings):
    """A folder with vocab.json and merges.txt, as older checkpoints have them, and its tokenizer_config.json."""
    model = json.loads(train_tokenizer().to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, model["merges"])))
    first = len(model["vocab"])
    added = {str(first + at): {"content": token, "special": True} for at, token in enumerate(SPECIAL_TOKENS)}
    told = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": added,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


def test_a_vocabulary_and_merges_read_as_transformers_reads_them(tmp_path):
    """Fault: a published checkpoint without tokenizer.json that cannot be served, or whose words are cut otherwise."""
    from transformers import AutoTokenizer

    folder = vocabulary_folder(tmp_path)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs(text, add_special_tokens=False).input_ids
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)


def test_a_clip_vocabulary_reads_as_transformers_reads_it(tmp_path):
    """Fault: words that end are cut as those that go on; capitals are other words; no first and last token around a text."""
    from transformers import CLIPTokenizer

    folder = tmp_path / "tokenizer"
    write_clip_tokenizer(folder)
    ours, theirs = load_tokenizer(folder), CLIPTokenizer.from_pretrained(folder)
    for text in [*TEXTS, "", "A cat's <|endoftext|>  tail", "the red_table, 1024x768!"]:
        for special in (True, False):
            expected = theirs(text, add_special_tokens=special).input_ids
            assert ours.encode(text, add_special_tokens=special).ids == expected


def test_an_added_token_with_another_id_is_another_models(tmp_path):
    """Fault: special tokens that land on ids which the model reads as something else."""
    folder = vocabulary_folder(tmp_path, added_tokens_decoder={"9999": {"content": "<|im_end|>", "special": True}})
    with pytest.raises(BrokenCheckpointError, match=r"gives '<\|im_end\|>' the id 9999, behind vocab.json it has"):
        load_tokenizer(folder)


def test_a_folder_without_either_is_named(tmp_path):
    """Fault: a vocabulary of an unknown kind that is read as if it were Qwen's."""
    folder = vocabulary_folder(tmp_path, tokenizer_class="GPT2Tokenizer")
    with pytest.raises(
        BrokenCheckpointError, match=r"has no tokenizer\.json; looked for the model's tokenizer, or vocab\.json"
    ):
        load_tokenizer(folder)


def test_a_broken_file_is_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(BrokenCheckpointError, match=r"tokenizer\.json cannot be read as a tokenizer: "):
        load_tokenizer(tmp_path)
