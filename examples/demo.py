"""Asks the built-in model three questions over HTTP and listens, then has it draw: writes WAV files and PNG files to out/.

Run it from the repository after `omnistage fetch demo`; it starts a server of its own on a free port and ends it again.
Prints for every answer TTFT (request to first text), TTFP (request to first sound) and RTF (time / seconds of sound),
and how long each picture took.
"""

from __future__ import annotations

import argparse
import base64
import json
import signal
import socket
import subprocess
import sys
import time
import wave
from pathlib import Path
from typing import Any

import httpx

QUESTIONS = (
    "What is the capital of France, and what is it famous for?",
    "Why is the sky blue?",
    "Give me one tip for sleeping better.",
)
DRAWINGS = ("red heart", "pizza", "a purple butterfly")
TOLD = "a red umbrella"
"""What is drawn and written about in one answer."""
MAX_TOKENS = 36
SAMPLE_RATE_HZ = 24000
READY_TIMEOUT_S = 120.0
OUT = Path("out")


def start_server() -> tuple[subprocess.Popen[bytes], str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("omnistage")), "serve", "demo", "--port", str(port)]
    return subprocess.Popen(command), f"http://127.0.0.1:{port}"


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"the server ended with code {server.returncode}")
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    sys.exit(f"the server was not ready after {READY_TIMEOUT_S:.0f} s")


def ask(url: str, question: str, path: Path, max_tokens: int) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "af_heart", "format": "pcm16"},
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
    }
    print(f"\n> {question}")
    begun = time.monotonic()
    first_text = first_sound = None
    sound = bytearray()
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as answer:
        if answer.status_code != 200:
            sys.exit(f"the server answered {answer.status_code}: {answer.read().decode()}")
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                sys.exit(f"the answer ended with an error: {chunk['error']['message']}")
            for choice in chunk["choices"]:
                if text := choice["delta"].get("content"):
                    first_text = first_text or time.monotonic()
                    print(text, end="", flush=True)
                if data := (choice["delta"].get("audio") or {}).get("data"):
                    first_sound = first_sound or time.monotonic()
                    sound += base64.b64decode(data)
    ended = time.monotonic()
    if first_text is None or first_sound is None:
        sys.exit("\nthe answer had no text or no sound")
    write_wav(path, bytes(sound))
    seconds = len(sound) / 2 / SAMPLE_RATE_HZ
    print(
        f"\n  TTFT {first_text - begun:.2f} s   TTFP {first_sound - begun:.2f} s   "
        f"RTF {(ended - begun) / seconds:.2f}   {seconds:.1f} s of sound in {path}",
        flush=True,
    )


def draw(url: str, prompt: str, path: Path, seed: int) -> None:
    """A picture alone: the stage that draws is the only one that runs."""
    begun = time.monotonic()
    body = {"model": "demo", "prompt": prompt, "seed": seed}
    (drawn,) = _answered(f"{url}/v1/images/generations", body)["data"]
    path.write_bytes(base64.b64decode(drawn["b64_json"]))
    print(f"  {prompt}: {time.monotonic() - begun:.2f} s, {path}", flush=True)


def tell_and_draw(url: str, prompt: str, path: Path, max_tokens: int) -> None:
    """Text and a picture in one answer, made side by side."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": prompt}],
        "modalities": ["text", "image"],
        "max_tokens": max_tokens,
        "temperature": 0,
        "seed": 1,
    }
    message = _answered(f"{url}/v1/chat/completions", body)["choices"][0]["message"]
    (drawn,) = message["images"]
    path.write_bytes(base64.b64decode(drawn["image_url"]["url"].partition(",")[2]))
    print(f"\n> {prompt}\n{message['content']}\n  {path}", flush=True)


def _answered(url: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(url, json=body, timeout=120)
    if answer.status_code != 200:
        sys.exit(f"the server answered {answer.status_code}: {answer.text}")
    found: dict[str, Any] = answer.json()
    return found


def write_wav(path: Path, pcm16: bytes) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes(pcm16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help="length of an answer, at most")
    max_tokens = parser.parse_args().max_tokens
    OUT.mkdir(exist_ok=True)
    server, url = start_server()
    try:
        wait_until_ready(server, url)
        for number, question in enumerate(QUESTIONS, 1):
            ask(url, question, OUT / f"answer{number}.wav", max_tokens)
        print("\nPictures:")
        for number, prompt in enumerate(DRAWINGS, 1):
            draw(url, prompt, OUT / f"picture{number}.png", seed=number)
        tell_and_draw(url, TOLD, OUT / f"picture{len(DRAWINGS) + 1}.png", max_tokens)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


if __name__ == "__main__":
    main()
