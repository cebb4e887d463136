"""Our decoder against transformers' modules, and which configurations it refuses."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from omnistage.core.errors import BrokenCheckpointError
from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.decoder import Decoder, DecoderNames, decoder_shape, load_decoder, read_decoder
from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.linear import Layout, PanelLinear, PlainLinear, in_panels
from tests.tiny.checkpoints import VOCAB_SIZE
from tests.tiny.references import load_reference, random_prompts
from tests.tiny.steps import run_whole

IDS = random_prompts(1, VOCAB_SIZE, longest=30, seed=6)[0]
CONFIG: dict[str, Any] = {
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
}


def load(folder: Path, dtype: torch.dtype = torch.float32, layout: Layout = "plain") -> Decoder:
    shape = decoder_shape(json.loads((folder / "config.json").read_text()))
    assert shape is not None
    return load_decoder(folder, shape, dtype, layout=layout)


@pytest.mark.parametrize("way", ["plain", "packed", "panels", "kernels"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "qwen2", "qwen3_moe"])
def test_logits_and_hidden_states_are_those_of_transformers(
    checkpoint: Callable[[str], Path], request: pytest.FixtureRequest, kind: str, way: Any
) -> None:
    """Fault: a norm, a bias, a rotation, a tied head: anything that differs by a little and changes a token in a hundred."""
    ops: KernelOps | None = request.getfixturevalue("kernels") if way == "kernels" else None
    folder = checkpoint(kind)
    with torch.inference_mode():
        wanted = load_reference(folder)(torch.tensor([IDS]), output_hidden_states=True)
    model = load(folder, layout="panels" if way == "kernels" else way)
    exact = run_whole(load(folder, torch.float64), IDS, layers=(0, 2, 4))
    for embeds in (False, True):
        step = run_whole(model, IDS, embeds=embeds, layers=(0, 2, 4), ops=ops)
        assert torch.allclose(step.logits, wanted.logits[0], atol=2e-4)
        for layer, rows in step.hidden.items():
            theirs = wanted.hidden_states[layer][0]
            if way == "kernels":  # sums in another order: as near to what is exact as transformers is, not the same
                assert error(rows, exact.hidden[layer]) <= 1.5 * error(theirs, exact.hidden[layer]) + 1e-6
            else:
                assert torch.allclose(rows, theirs, atol=1e-4)


def error(rows: torch.Tensor, exact: torch.Tensor) -> float:
    return float((rows - exact).abs().max())


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_no_more_than_one_matrix_lies_twice(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Fault: a model is held twice while it is loaded, or an embedding beside the head that shares its weights."""
    originals: list[weakref.ref[torch.Tensor]] = []

    def watched(plain: PlainLinear) -> PanelLinear:
        assert not any(original() is not None for original in originals)
        originals.append(weakref.ref(plain.weight))
        return in_panels(plain)

    monkeypatch.setattr("omnistage.modeling.linear.in_panels", watched)
    model = load(checkpoint(kind), layout="panels")
    assert len(originals) == 4 * model.num_layers + 1
    assert not any(original() is not None for original in originals)


def test_nothing_is_packed_that_cannot_be(checkpoint: Callable[[str], Path]) -> None:
    """Fault: a dtype that oneDNN does not know on this processor ends the loading."""
    step = run_whole(load(checkpoint("llama"), torch.float64, layout="packed"), IDS)
    assert torch.isfinite(step.logits).all()


def test_bfloat16_is_as_near_to_float32_as_transformers_is(checkpoint: Callable[[str], Path]) -> None:
    """Fault: something that should be computed in float32 is not."""
    folder = checkpoint("qwen3")
    ids = random_prompts(1, VOCAB_SIZE, longest=1, seed=8)[0] * 3 + IDS * 40
    exact = run_whole(load(folder), ids).logits
    with torch.inference_mode():
        theirs = load_reference(folder, torch.bfloat16)(torch.tensor([ids])).logits[0].float()
    ours = run_whole(load(folder, torch.bfloat16), ids).logits
    assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}},
        {"hidden_act": "gelu"},
        {"sliding_window": 16},
        {"mlp_bias": True},
        {"partial_rotary_factor": 0.5},
        {"layer_types": ["sliding_attention"]},
        {"quantization_config": {"bits": 4}},
    ],
    ids=str,
)
def test_what_this_decoder_does_not_do_is_left_to_others(settings: dict[str, Any]) -> None:
    """Fault: a model that asks for more runs all the same, and writes nonsense."""
    assert decoder_shape(CONFIG) is not None
    assert decoder_shape({**CONFIG, **settings}) is None


def test_old_and_new_ways_to_write_a_configuration() -> None:
    """Fault: the base of the rotation is only read from one of its two places; a window that is switched off counts."""
    old = decoder_shape({**CONFIG, "rope_theta": 5e5, "sliding_window": 16, "use_sliding_window": False})
    new = decoder_shape({**CONFIG, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})
    assert old == new
    assert old is not None
    assert (old.rope_theta, old.num_kv_heads, old.head_dim) == (5e5, 2, 4)


def test_weights_that_do_not_fit_are_named(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Fault: a tensor that is absent or of another model is left random, or fails in the first step."""
    source = checkpoint("llama")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    weights = load_file(source / "model.safetensors")
    name = "model.layers.2.mlp.up_proj.weight"
    save_file({key: value for key, value in weights.items() if key != name}, tmp_path / "model.safetensors")
    with pytest.raises(BrokenCheckpointError, match=name):
        load(tmp_path)
    save_file({**weights, name: torch.ones(1, 1)}, tmp_path / "model.safetensors")
    with pytest.raises(BrokenCheckpointError, match=rf"{name} has shape \[1, 1\]"):
        load(tmp_path)


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_decoder_among_others_reads_its_own_tensors(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fused: bool
) -> None:
    """Fault: a stage reads the weights of another, or cannot read experts that are one tensor."""
    source = checkpoint("qwen3_moe")
    expected = run_whole(load(source), IDS)
    weights = load_file(source / "model.safetensors")
    named = {name.replace("model.", "own.body.").replace("lm_head", "own.head"): one for name, one in weights.items()}
    named = {name.replace("embed_tokens", "table"): one for name, one in named.items()}
    if is_fused:
        named = fused(named)
    save_file(named | {"other.body.norm.weight": torch.ones(10**4)}, tmp_path / "model.safetensors")
    shape = decoder_shape(json.loads((source / "config.json").read_text()))
    assert shape is not None
    reader, read = WeightsReader(tmp_path, torch.float32, "own."), set[str]()
    stored = reader._stored

    def watched(name: str, size: Sequence[int]) -> torch.Tensor:
        read.add(name)
        return stored(name, size)

    monkeypatch.setattr(reader, "_stored", watched)
    model = read_decoder(reader, shape, names=DecoderNames("body.", "table", "head"))
    assert torch.allclose(run_whole(model, IDS).logits, expected.logits, atol=1e-5)
    assert read == {name.removeprefix("own.") for name in named if name.startswith("own.")}


def fused(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same with the experts of a layer as one tensor."""
    made = {name: one for name, one in weights.items() if ".experts." not in name}
    layers = {name.split("experts.")[0] for name in weights if ".experts." in name}
    for layer in layers:
        count = sum(name.startswith(f"{layer}experts.") and "up_proj" in name for name in weights)
        part = "{}experts.{}.{}_proj.weight".format
        gate_up = [torch.cat([weights[part(layer, index, name)] for name in ("gate", "up")]) for index in range(count)]
        made[f"{layer}experts.gate_up_proj"] = torch.stack(gate_up)
        down = [weights[part(layer, index, "down")] for index in range(count)]
        made[f"{layer}experts.down_proj"] = torch.stack(down)
    return made


def test_a_mixture_is_computed_in_one_call(checkpoint: Callable[[str], Path], kernels: KernelOps) -> None:
    """Fault: a decoder with experts falls back to a call for every operation of every layer."""

    class Counted(KernelOps):
        def attention_block(self, *given: Any) -> torch.Tensor:
            raise AssertionError("an operation by itself")

    ops = Counted(kernels.path)
    step = run_whole(load(checkpoint("qwen3_moe"), layout="panels"), IDS, ops=ops)
    assert torch.isfinite(step.logits).all()


@pytest.mark.parametrize("way", ["plain", "kernels"])
def test_captured_rows_hold_nothing_of_what_is_added_behind_their_layer(
    checkpoint: Callable[[str], Path], request: pytest.FixtureRequest, way: str
) -> None:
    """Fault: another stage reads what a layer made together with what was added to it, or the next layer does not."""
    ops: KernelOps | None = request.getfixturevalue("kernels") if way == "kernels" else None
    model = load(checkpoint("llama"), layout="panels")
    more = torch.randn(len(IDS), model.hidden_size, generator=torch.Generator().manual_seed(2))
    plain = run_whole(model, IDS, layers=(1, 2, 3), ops=ops).hidden
    added = run_whole(model, IDS, layers=(1, 2, 3), ops=ops, layered={0: more}).hidden
    assert torch.equal(added[1], plain[1])
    assert not torch.allclose(added[2], plain[2], atol=0.1)
    last = model.num_layers - 1
    normed = run_whole(model, IDS, layers=(last + 1,), ops=ops, layered={last: more}).hidden[last + 1]
    assert not torch.allclose(normed, run_whole(model, IDS, layers=(last + 1,), ops=ops).hidden[last + 1], atol=0.1)
