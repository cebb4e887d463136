"""GGUF to a Hugging Face folder, against transformers and tokenizers as the slow references."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from omnistage.core.errors import BrokenCheckpointError
from omnistage.models.demo.convert import convert_llama, to_bfloat16_bits, undo_rope_permutation
from omnistage.models.demo.weights import DemoWeights
from tests.models.demo.tiny_wheels import TEMPLATE, write_gguf


@given(arrays(np.float32, 16, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_bfloat16_is_rounded_as_torch_does(values: np.ndarray) -> None:
    """Fault: truncation in place of rounding to nearest even."""
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(to_bfloat16_bits(values), expected)


def test_the_rows_of_a_head_are_put_back_in_two_halves() -> None:
    """Fault: queries and keys turned by the wrong rotary frequency, which garbles long answers only."""
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)
    assert undo_rope_permutation(rows, num_heads=2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_the_folder_equals_what_transformers_reads_from_the_file(tmp_path: Path) -> None:
    """Fault: a tensor renamed, permuted or dequantised wrongly, or a config value that differs."""
    write_gguf(tmp_path / "tiny.gguf")
    folder = tmp_path / "out"
    folder.mkdir()
    convert_llama(tmp_path / "tiny.gguf", folder)
    reference = LlamaForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(folder)
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in reference.state_dict().items()}
    assert ours.dtype == torch.bfloat16
    assert ours.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.state_dict().items())
    assert ours.config.rms_norm_eps == 1e-5
    assert ours.config.rope_parameters["rope_theta"] == 10000.0
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")


def test_the_tokenizer_splits_digits_and_keeps_control_tokens(tmp_path: Path) -> None:
    """Fault: a pre-tokenizer that merges digits, a control token split into letters, or no chat template."""
    write_gguf(tmp_path / "tiny.gguf")
    convert_llama(tmp_path / "tiny.gguf", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("<|im_start|>ab a12<|im_end|>").input_ids)
    assert tokens == ["<|im_start|>", "ab", "Ġa", "1", "2", "<|im_end|>"]
    assert tokenizer.chat_template == TEMPLATE
    assert (tokenizer.eos_token, tokenizer.bos_token) == ("<|im_end|>", "<|im_start|>")
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == 2


def test_other_files_are_refused(tmp_path: Path) -> None:
    """Fault: a traceback, or a folder of nonsense, from a file that is no Llama."""
    path = tmp_path / "x.gguf"
    path.write_bytes(b"not a model at all" * 10)
    with pytest.raises(BrokenCheckpointError, match=r"x\.gguf"):
        convert_llama(path, tmp_path)
    write_gguf(path, architecture="bert")
    with pytest.raises(BrokenCheckpointError, match="'bert' is not accepted; accepted: 'llama'"):
        convert_llama(path, tmp_path)


@pytest.mark.weights
def test_the_fetched_model_answers_a_question(demo_weights: DemoWeights) -> None:
    """Fault: a conversion whose pieces are all plausible and whose whole talks nonsense."""
    tokenizer = AutoTokenizer.from_pretrained(demo_weights.thinker_dir)
    model = AutoModelForCausalLM.from_pretrained(demo_weights.thinker_dir, dtype=torch.float32)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=16, do_sample=False)
    answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer == "The capital of France is Paris."
