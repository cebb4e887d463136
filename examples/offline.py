"""The built-in model from Python: two questions at once, the answers as text and as WAV files in out/."""

from __future__ import annotations

from pathlib import Path

import soundfile

from omnistage import Omni

QUESTIONS = ("What is the capital of France?", "Name a colour.")
OUT = Path("out")


def main() -> None:
    OUT.mkdir(exist_ok=True)
    conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
    with Omni("demo") as omni:
        answers = omni.generate(conversations, [{"temperature": 0, "max_tokens": 16}])
    for number, (question, answer) in enumerate(zip(QUESTIONS, answers, strict=True), 1):
        path = OUT / f"offline{number}.wav"
        sound = answer.multimodal_output
        soundfile.write(path, sound.numpy("audio"), sound.metadata["sample_rate"], subtype="PCM_16")
        print(f"{question}\n  {answer.text}\n  {path}")


if __name__ == "__main__":
    main()
