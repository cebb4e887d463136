"""Models of transformers, unchanged, over the paged cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from omnistage.core.errors import BrokenCheckpointError, UnsupportedByModelError
from omnistage.modeling.transformers_model import TransformersModel, load_transformers_model
from tests.tiny.checkpoints import VOCAB_SIZE
from tests.tiny.references import load_reference, random_prompts
from tests.tiny.steps import run_whole

IDS = random_prompts(1, VOCAB_SIZE, longest=60, seed=7)[0]


@pytest.mark.parametrize("kind", ["qwen3_moe", "mistral"])
def test_logits_and_hidden_states_are_the_librarys_own(checkpoint: Callable[[str], Path], kind: str) -> None:
    """Fault: experts, windows or positions that change when rows are flattened; hidden states one layer off."""
    folder = checkpoint(kind)
    with torch.inference_mode():
        wanted = load_reference(folder)(torch.tensor([IDS]), output_hidden_states=True)
    model = load_transformers_model(folder, torch.float32)
    for embeds in (False, True):
        step = run_whole(model, IDS, embeds=embeds, layers=(0, 3, 4))
        assert torch.allclose(step.logits, wanted.logits[0], atol=2e-4)
        for layer, rows in step.hidden.items():
            assert torch.allclose(rows, wanted.hidden_states[layer][0], atol=1e-4)


def test_attention_that_is_not_known_here_is_refused() -> None:
    """Fault: a soft cap or a sink is dropped in silence, and the model writes nonsense."""
    config = transformers.Gemma2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        attn_logit_softcapping=50.0,
    )
    model = TransformersModel(transformers.AutoModelForCausalLM.from_config(config))
    with pytest.raises(UnsupportedByModelError, match="softcap"):
        run_whole(model, [1, 2, 3])


def test_a_folder_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    """Fault: the library's traceback of many lines."""
    (tmp_path / "config.json").write_text('{"model_type": "no-such-thing"}')
    with pytest.raises(BrokenCheckpointError, match="cannot be loaded as a causal language model") as caught:
        load_transformers_model(tmp_path, torch.float32)
    assert "\n" not in caught.value.message
