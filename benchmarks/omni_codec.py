"""The codec decoder beside transformers': CPU seconds for the same sound, one thread.

Ours streams at the published schedule, 4 frames and then 25 at a time, each once. The peer is transformers' own chunked decode as
it is served: 25 frames with 25 frames of context before them, which are decoded again and thrown away. In a process of its own:
`python -m benchmarks.omni_codec MODEL` prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from benchmarks.ar import ENVIRONMENT
from benchmarks.rows import Benchmark, Row
from omnistage.core.params import GenerationParams
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.checkpoint import WeightsReader
from omnistage.modeling.folder import Section
from omnistage.modeling.kernels.build import build
from omnistage.modeling.kernels.waves import chosen_waves
from omnistage.models.qwen3_omni.code2wav import Code2Wav
from omnistage.models.qwen3_omni.settings import code2wav_settings

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "codebook_size": 64,
        "num_quantizers": 4,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "decoder_dim": 32,
    },
    "100m": {
        "codebook_size": 1024,
        "num_quantizers": 8,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "decoder_dim": 384,
    },
}
"""By the size of the model that the decoder would belong to: 0.1 and 10 million parameters of its own."""
FRAMES = 200
FIRST, LATER = 4, 25
CONTEXT = 25
MISSING = 555
"""Samples that a call of the decoder makes less than 1920 a frame."""
PAIRS = 7
TOLERANCE = 1e-5
GOAL = ">= 1.8"
_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Measured:
    """CPU seconds, pair by pair; the largest difference to the decode of all frames at once."""

    ours_s: list[float]
    peer_s: list[float]
    difference: float
    parameters: int


@torch.inference_mode()
def measure(name: str) -> Measured:
    """Equality, then pairs."""
    torch.set_num_threads(1)
    build()
    module = drawn(SHAPES[name])
    codes = torch.randint(0, SHAPES[name]["codebook_size"], (1, SHAPES[name]["num_quantizers"], FRAMES))
    with tempfile.TemporaryDirectory() as scratch:
        model = ours(module, Path(scratch))
    frames = codes[0].T.contiguous().numpy()
    streamed, chunked = partial(stream, model, frames), partial(module.chunked_decode, codes, LATER, CONTEXT)
    sound, peer = streamed(), chunked()[0, 0]
    assert len(sound) == FRAMES * 1920 - MISSING
    assert len(peer) == FRAMES * 1920 - MISSING * (FRAMES // LATER)  # and so much less at every border
    difference = float((sound - module(codes)[0, 0]).abs().max())
    first = LATER * 1920 - MISSING  # further on the peer has forgotten what came before its context
    assert max(difference, float((sound[:first] - peer[:first]).abs().max())) <= TOLERANCE, difference
    pairs = [(cpu_s(streamed), cpu_s(chunked)) for _ in range(PAIRS)]
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return Measured([mine for mine, _ in pairs], [theirs for _, theirs in pairs], difference, parameters)


def stream(model: Code2Wav, frames: Any) -> torch.Tensor:
    """All samples, chunk by chunk."""
    request = OmniRequest(request_id="r", prompt=Prompt(text=""), wants=("audio",), stage_params={})
    state, sounds, start = model.begin(request, GenerationParams()), [], 0
    while start < len(frames):
        end = start + (LATER if start else FIRST)
        ((payload, state),) = model.run([({"frames": frames[start:end]}, state)])
        assert payload is not None
        sounds.append(torch.from_numpy(payload.numpy("audio")))
        start = end
    return torch.cat(sounds)


def cpu_s(run: Callable[[], object]) -> float:
    begun = time.process_time()
    run()
    return time.process_time() - begun


def drawn(shape: dict[str, Any]) -> Any:
    """transformers' module with random weights that can be heard: silence would be computed with denormal numbers."""
    torch.manual_seed(0)
    module = Qwen3OmniMoeCode2Wav(Qwen3OmniMoeCode2WavConfig(**shape)).eval()
    for name, parameter in module.named_parameters():
        if "layer_scale" in name or name.endswith(".gamma"):
            parameter.fill_(0.5)
        elif parameter.dim() > 1:
            width = 1 if "code_embedding" in name else parameter[0].numel()
            parameter.normal_(0, (0.3 if "conv2" in name else 1.0) * width**-0.5)
    return module


def ours(module: Any, folder: Path) -> Code2Wav:
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, folder / "model.safetensors")
    config = Section({"code2wav_config": module.config.to_dict()}, "config.json")
    return Code2Wav(WeightsReader(folder, torch.float32), code2wav_settings(config), chosen_waves())


def beside_chunked(name: str) -> list[Row]:
    command = [sys.executable, "-m", "benchmarks.omni_codec", name]
    done = subprocess.run(
        command, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=True
    )
    found = Measured(**json.loads(done.stdout.splitlines()[-1]))
    ratios = [theirs / mine for mine, theirs in zip(found.ours_s, found.peer_s, strict=True)]
    workload = (
        f"{FRAMES} frames, {FRAMES * 0.08:.0f} s of sound, {found.parameters / 1e6:.1f} M parameters; "
        f"{FIRST} frames and then {LATER} at a time beside {LATER} with {CONTEXT} before them; "
        f"{min(ratios):.2f}-{max(ratios):.2f} in {PAIRS} pairs; {found.difference:.1e} from one decode of all"
    )
    return [
        Row(
            name_of(name),
            statistics.median(found.ours_s),
            GOAL,
            "CPU s",
            workload,
            peer=statistics.median(found.peer_s),
            peer_version=f"transformers {transformers.__version__}",
            ratio=statistics.median(ratios),
            env=ENVIRONMENT,
        )
    ]


def name_of(name: str) -> str:
    return "code2wav_cpu_s_vs_chunked" + ("" if name == "tiny" else f"_{name}")


BENCHMARKS = tuple(Benchmark((name_of(name),), partial(beside_chunked, name), quick=name == "tiny") for name in SHAPES)

if __name__ == "__main__":
    print(json.dumps(asdict(measure(sys.argv[1]))))
