"""What the guides show runs as it is written."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import soundfile
import typer

from omnistage.cli.main import application
from omnistage.cli.overrides import parse_overrides
from omnistage.core.errors import ConfigError
from omnistage.serve.protocol.images import EditRequest
from tests.engine.models import EDITED
from tests.fakes_runtime import FakeRuntime
from tests.runtime.harness import eventually
from tests.serve.files import opened, picture_file
from tests.serve.live import live, serving_of

OTHERS_FLAGS = {"--strict", "--yes"}  # mypy's, pip's
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


def options_of(command: Any) -> set[str]:
    """Of a command and all below it."""
    own = {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(options_of(below) for below in getattr(command, "commands", {}).values()))


def is_flag(word: str) -> bool:
    """Whether a configuration key is given so."""
    try:
        parse_overrides([word])
    except ConfigError as error:
        return "unknown flag" not in error.message
    return True


def test_flags_variables_and_urls_that_the_pages_name_are_there() -> None:
    """Fault: a page names what was renamed, or what never came."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    options = options_of(typer.main.get_command(application([]))) | OTHERS_FLAGS
    flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) - options
    assert [flag for flag in sorted(flags) if not is_flag(flag)] == []
    code = "".join(path.read_text() for name in ("src", "benchmarks") for path in (ROOT / name).rglob("*.py"))
    assert {name for name in re.findall(r"OMNISTAGE_\w+", text) if name not in code} == set()
    with live(serving_of(FakeRuntime(), debug=True)) as address:
        served = httpx.get(f"{address}/openapi.json").json()["paths"]
    urls = set(re.findall(r"(?<![\w./])/(?:v1/|health|metrics|version|debug/|openapi)[\w/{}.]*", text))
    assert urls <= {*served, "/openapi.json"} and len(urls) > 8


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


def curled(line: str, address: str, folder: Path) -> httpx.Response:
    """What curl would send: -H, -d, and -F with a file behind @."""
    words = shlex.split(line.replace("\\\n", " ").replace("http://127.0.0.1:8091", address))
    url, options = words[1], list(zip(words[2::2], words[3::2], strict=True))
    headers = dict(value.split(": ", 1) for name, value in options if name == "-H")
    body = next((value for name, value in options if name == "-d"), None)
    fields = [value.split("=", 1) for name, value in options if name == "-F"]
    files = [(name, (value[1:], (folder / value[1:]).read_bytes())) for name, value in fields if value[0] == "@"]
    data = {name: value for name, value in fields if value[0] != "@"}
    return httpx.post(url, content=body, headers=headers, data=data if fields else None, files=files or None)


def test_the_images_page_draws(tmp_path: Path) -> None:
    """Fault: the page shows fields or events that there are not, or tells of fewer than there are."""
    page = (ROOT / "docs" / "images.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`([a-z_]+)`", page.partition("## Fields")[2].partition("## Streams")[0]))
    assert told >= EditRequest.model_fields.keys()
    (tmp_path / "mask.png").write_bytes(picture_file(3, 2, mode="RGBA"))
    with live(serving_of(FakeRuntime(), EDITED)) as address:
        [block] = blocks(ROOT / "docs" / "images.md")
        assert run(changed(block, "http://127.0.0.1:8091", address), tmp_path).split("\n")[0] == "on its way: 0"
        assert [opened((tmp_path / name).read_bytes()).size for name in ("cat.png", "dog.png")] == [(3, 2)] * 2
        [shell] = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
        drawn, edited = (
            curled(f"curl {line}", address, tmp_path) for line in re.split("^curl ", shell, flags=re.MULTILINE)[1:]
        )
    assert [one["url"][:22] for one in drawn.json()["data"]] == ["data:image/png;base64,"] * 2
    assert (edited.status_code, edited.json()["output_format"]) == (200, "webp")


@pytest.mark.weights
def test_the_server_page_answers(served: str, tmp_path: Path) -> None:
    """Fault: the official client cannot do what the page shows."""
    [block] = blocks(ROOT / "docs" / "server.md")
    short = changed(block, "max_tokens=48", "max_tokens=12")
    run(changed(short, "http://127.0.0.1:8091", served), tmp_path)
    samples, rate = soundfile.read(tmp_path / "answer.wav")
    assert rate == 24000 and samples.size > 5000
