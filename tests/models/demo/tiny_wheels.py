"""A recipe in miniature: a GGUF file of a Llama with two layers, three speaker parts, in wheels of a few kilobytes."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np

from omnistage.models.demo.weights import Member, Recipe, Wheel

HIDDEN, HEADS, KV_HEADS, FFN, LAYERS = 32, 4, 2, 64, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "c", "Ġ", "1", "2", "ab", "Ġa", "12"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def write_gguf(path: Path, architecture: str = "llama") -> None:
    """Random weights, the projections quantised as Q8_0, the norms float32."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "Ġ a", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    for name, shape in _shapes().items():
        values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
        else:
            quantised = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    rows = {"attn_q": HIDDEN, "attn_k": HIDDEN * KV_HEADS // HEADS, "attn_v": HIDDEN * KV_HEADS // HEADS}
    rows |= {"attn_output": HIDDEN, "ffn_gate": FFN, "ffn_up": FFN}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{part}.weight": (count, HIDDEN) for part, count in rows.items()}
        shapes[f"blk.{layer}.ffn_down.weight"] = (HIDDEN, FFN)
        shapes |= {f"blk.{layer}.{part}.weight": (HIDDEN,) for part in ("attn_norm", "ffn_norm")}
    return shapes


def make_wheels(folder: Path) -> Recipe:
    """Write the wheels and the recipe that pins them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_gguf(folder / "tiny.gguf")
    thinker = _wheel(folder, "tiny-thinker", {"tiny/model.gguf": (folder / "tiny.gguf").read_bytes()})
    (folder / "tiny.gguf").unlink()
    parts = [bytes([number]) * 1000 for number in range(3)]
    speakers = [_wheel(folder, f"tiny-part-{n}", {"tiny/part.bin": part}) for n, part in enumerate(parts)]
    vocabulary = _wheel(folder, "tiny-vocabulary", {"tiny/vocab.json": b'{"vocab": {"a": 1}}'})
    return Recipe(
        thinker_gguf=Member(thinker, "tiny/model.gguf"),
        speaker_parts=tuple(Member(wheel, "tiny/part.bin") for wheel in speakers),
        speaker_sha256=hashlib.sha256(b"".join(parts)).hexdigest(),
        speaker_vocabulary=Member(vocabulary, "tiny/vocab.json"),
    )


def _wheel(folder: Path, package: str, files: dict[str, bytes]) -> Wheel:
    path = folder / Wheel(package, "1.0", "").filename
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return Wheel(package, "1.0", hashlib.sha256(path.read_bytes()).hexdigest())
