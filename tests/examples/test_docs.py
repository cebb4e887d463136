"""What the guides show runs as it is written."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from tests.runtime.harness import eventually

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def changed(block: str, found: str, replacement: str) -> str:
    """A page's example asking for less, or asking elsewhere; what is replaced must stand there."""
    assert block.count(found) == 1
    return block.replace(found, replacement)


def run(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_is_python(page: Path) -> None:
    """Fault: an example that nobody has read since it was broken."""
    for number, block in enumerate(blocks(page)):
        assert compile(block, f"{page.name}[{number}]", "exec").co_names, "an example that does nothing"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_points_to_is_there(page: Path) -> None:
    """Fault: a link that leads nowhere."""
    linked = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [name for name in linked if not (page.parent / name).exists()] == []


@pytest.mark.weights
def test_the_python_page_answers(tmp_path: Path) -> None:
    """Fault: the page shows calls or fields that there are not."""
    whole, _message, streamed = blocks(ROOT / "docs" / "python.md")
    short = changed(whole, '"max_tokens": 48', '"max_tokens": 12')
    said = run(f"{short}\nprint(samples.size > 5000, rate)\n", tmp_path)
    assert "True 24000" in said and len(said.split()) > 5
    limited = 'AsyncOmni("demo", stage_0_default_sampling_params={"max_tokens": 8})'
    assert run(changed(streamed, 'AsyncOmni("demo")', limited), tmp_path).strip()


@pytest.fixture
def served() -> Iterator[str]:
    """The address of a server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("omnistage")), "serve", "demo", "--port", str(port)]
    with subprocess.Popen(command) as server:
        try:
            assert eventually(lambda: is_ready(f"http://127.0.0.1:{port}/health"), 60.0)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


@pytest.mark.weights
def test_the_server_page_answers(served: str, tmp_path: Path) -> None:
    """Fault: the official client cannot do what the page shows."""
    [block] = blocks(ROOT / "docs" / "server.md")
    short = changed(block, "max_tokens=48", "max_tokens=12")
    run(changed(short, "http://127.0.0.1:8091", served), tmp_path)
    samples, rate = soundfile.read(tmp_path / "answer.wav")
    assert rate == 24000 and samples.size > 5000
