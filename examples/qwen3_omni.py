"""Shows Qwen3-Omni pictures, sounds and videos, and asks about them: `python examples/qwen3_omni.py FOLDER QUESTION FILE ...`.

FOLDER has a checkpoint as published. The answer is printed while it is written, and its speech is saved to out/qwen3_omni.wav. What
kind a file is follows from its name. In bfloat16 the published model takes about 70 GB: `--dtype bfloat16`.
"""

from __future__ import annotations

import argparse
import mimetypes
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from omnistage import GenerationParams, Omni

OUT = Path("out/qwen3_omni.wav")


def part_of(file: Path) -> dict[str, Any]:
    """A file as a part of a message."""
    kind = (mimetypes.guess_type(file.name)[0] or "").partition("/")[0]
    if kind not in ("image", "audio", "video"):
        raise SystemExit(f"{file}: the name says neither picture nor sound nor video")
    return {"type": kind, kind: str(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("question")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--voice", default="ethan")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-tokens", type=int, default=256)
    asked = parser.parse_args()
    content = [*map(part_of, asked.files), {"type": "text", "text": asked.question}]
    params = [{"max_tokens": asked.max_tokens}, {}, GenerationParams(voice=asked.voice)]
    pieces = []
    with Omni(asked.folder, dtype=asked.dtype) as omni:
        for part in omni.generate([[{"role": "user", "content": content}]], params, stream=True):
            if part.error is not None:
                raise SystemExit(part.error.message)
            print(part.text, end="", flush=True)
            if "audio" in part.multimodal_output.tensors:
                pieces.append(part.multimodal_output.numpy("audio"))
    samples = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    OUT.parent.mkdir(exist_ok=True)
    soundfile.write(OUT, samples, 24_000)
    print(f"\nwrote {len(samples) / 24_000:.1f} s of speech to {OUT}")


if __name__ == "__main__":
    main()
