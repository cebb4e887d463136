"""The parts of the codec decoder's last half, beside the plain convolutions of `modeling.streaming`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.folder import Section
from omnistage.modeling.kernels.waves import TorchWaves
from omnistage.modeling.protocols import Interrupted
from omnistage.modeling.streaming import (
    causal_conv1d,
    causal_conv1d_state,
    transposed_conv1d,
    transposed_conv1d_state,
)
from omnistage.models.qwen3_omni import waveform
from omnistage.models.qwen3_omni.settings import code2wav_settings
from omnistage.models.qwen3_omni.waveform import Bent, CausalConv, TransposedConv, WaveDecoder, Weights
from tests.tiny.omni_codec import SMALL, write_codec


def weights_of(folder: Path, tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> Weights:
    save_file(tensors, folder / "model.safetensors")
    return Weights(WeightsReader(folder, dtype), TorchWaves())


@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_causal_convolution_is_the_plain_one(dilation: int, dtype: torch.dtype, tmp_path: Path) -> None:
    """Fault: a past of another length."""
    tensors = {"c.conv.weight": torch.randn(5, 3, 7) / 4, "c.conv.bias": torch.randn(5)}
    conv = CausalConv(weights_of(tmp_path, tensors, dtype), "c", 3, 5, dilation=dilation)
    weight, bias = tensors["c.conv.weight"].to(dtype), tensors["c.conv.bias"].to(dtype)
    state = causal_conv1d_state(weight, dilation=dilation)
    assert torch.equal(conv.begin(), state)
    x = torch.randn(1, 3, 20).to(dtype)
    wanted, _ = causal_conv1d(x, state, weight, bias, dilation=dilation)
    found = conv(torch.cat((state, x), dim=-1))
    assert found.dtype == dtype
    assert torch.allclose(found.double(), wanted.double(), rtol=0, atol=1e-2 if dtype == torch.bfloat16 else 1e-5)


def test_a_transposed_convolution_begins_late_once(tmp_path: Path) -> None:
    """Fault: the trim on the wrong side, or at every chunk."""
    tensors = {"t.conv.weight": torch.randn(4, 6, 10) / 3, "t.conv.bias": torch.randn(6)}
    conv = TransposedConv(weights_of(tmp_path, tensors), "t", 4, 6, 5)
    x = torch.randn(1, 4, 9)
    state = transposed_conv1d_state(tensors["t.conv.weight"], stride=5)
    plain, _ = transposed_conv1d(x, state, tensors["t.conv.weight"], tensors["t.conv.bias"], stride=5)
    held = torch.cat((conv.begin(), x), dim=-1)
    assert torch.allclose(conv(held), plain[..., 5:], rtol=0, atol=1e-5)
    chunks = [conv(held[..., :4]), conv(held[..., 3:5]), conv(held[..., 4:])]
    assert torch.allclose(torch.cat(chunks, dim=-1), plain[..., 5:], rtol=0, atol=1e-5)


def test_snake_bends_by_channel_and_leaves_the_past_alone(tmp_path: Path) -> None:
    """Fault: alpha for beta, logarithms taken for values, or a past that is bent once more with every chunk."""
    tensors = {"s.alpha": torch.randn(3), "s.beta": torch.randn(3)}
    tensors |= {"c.conv.weight": torch.randn(2, 3, 7), "c.conv.bias": torch.randn(2)}
    weights = weights_of(tmp_path, tensors)
    bent = Bent(weights, "s", 3, CausalConv(weights, "c", 3, 2))
    x, past = torch.randn(2, 3, 11), torch.randn(2, 3, 6)
    alpha, beta = (tensors[name].exp()[:, None] for name in ("s.alpha", "s.beta"))
    held = torch.cat((past, x + torch.sin(alpha * x) ** 2 / beta), dim=-1)
    found, (kept,) = weights.waves.chain([bent.link])(x, (past,))
    assert torch.allclose(kept, held[..., -6:], rtol=0, atol=1e-5)
    wanted = torch.nn.functional.conv1d(held, tensors["c.conv.weight"], tensors["c.conv.bias"])
    assert torch.allclose(found, wanted, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> WaveDecoder:
    folder = write_codec(tmp_path_factory.mktemp("codec"), SMALL)
    shape = code2wav_settings(Section({"code2wav_config": SMALL.config()}, "config.json"))
    return WaveDecoder(Weights(WeightsReader(folder, torch.float32, "code2wav."), TorchWaves()), shape)


@given(tile=st.integers(1, 400), cut=st.integers(0, 20), batch=st.integers(1, 3))
@settings(max_examples=40)
def test_tiles_are_not_heard(tile: int, cut: int, batch: int, decoder: WaveDecoder) -> None:
    """Fault: a block that works through its input in pieces makes something else, or stumbles over a piece that is too short
    to make anything."""
    x = torch.randn(batch, SMALL.hidden, 20, generator=torch.Generator().manual_seed(cut))
    state = expanded(decoder.begin(), batch)
    wanted, _ = decoder(x, state, lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waveform, "TILE", tile)
        first, state = decoder(x[..., :cut], state, lambda: None)
        second, _ = decoder(x[..., cut:], state, lambda: None)
    found = torch.cat((first, second), dim=1)
    assert found.shape == wanted.shape == (batch, ((20 - 1) * 3 - 1) * 2)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-5)


def expanded(state: object, batch: int) -> object:
    if isinstance(state, torch.Tensor):
        return state.expand(batch, *state.shape[1:])
    assert isinstance(state, tuple)
    return tuple(expanded(part, batch) for part in state)


def test_what_pause_raises_ends_it(decoder: WaveDecoder) -> None:
    """Fault: a cancel that waits for the end of the sound."""

    def stop() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        decoder(torch.randn(1, SMALL.hidden, 20), decoder.begin(), stop)
