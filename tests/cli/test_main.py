"""The command line as a whole: which commands there are, and how an error ends one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from omnistage import __version__
from omnistage.cli.main import COMMANDS, application, main

PROGRAM = """
import sys
from omnistage.cli.main import main
try:
    main(["collect-env"])
except SystemExit:
    print(*sys.modules)
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    """Exit code, stdout and stderr of one call."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a command that nobody can find."""
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert [name for name in COMMANDS if name not in out] == []


def flags_of(command: str) -> list[str]:
    group: Any = typer.main.get_command(application([command]))
    return [name for parameter in group.commands[command].params for name in parameter.opts if name.startswith("--")]


@pytest.mark.parametrize("command", ["serve", "generate"])
@pytest.mark.parametrize("asked", ["-h", "--help"])
def test_help_shows_every_flag_whole(capsys: pytest.CaptureFixture[str], command: str, asked: str) -> None:
    """Fault: a terminal of usual width cuts the name of a flag, `-h` is the name of a model, or a flag that takes no value seems
    to take one."""
    code, out, _ = run(capsys, command, asked)
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert [name for name in flags_of(command) if name not in out.split()] == []
    assert "<bool>" not in out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a version other than the package's."""
    assert run(capsys, "--version") == (0, f"{__version__}\n", "")


def test_the_package_runs_as_a_program() -> None:
    """Fault: `python -m omnistage` is no program, or one under another name."""
    words = [sys.executable, "-m", "omnistage", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert "Usage: omnistage " in done.stdout


@pytest.mark.parametrize(
    "words", [("nosuch",), ("serve",), ("fetch",), ("generate", "folder"), ("serve", "m", "--port", "x")]
)
def test_a_wrong_usage_ends_with_2(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    """Fault: a misspelt command or a missing argument looks like a failure of the program, or like success."""
    code, _, err = run(capsys, *words)
    assert code == 2
    assert err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fetch", "nosuch"), "error: nosuch: there is no built-in model of that name"),
        (("serve", "m", "--port", "70000"), "error: port: 70000 is not accepted; accepted: an integer in [0, 65535]"),
        (("generate", "/nosuch", "--prompt", "x"), "error: no pipeline for model '/nosuch'"),
        (
            ("generate", "m", "--prompt", "x", "--stage-0-thread", "1"),
            "error: --stage-0-thread: unknown flag; did you mean",
        ),
        (
            ("generate", "m", "--prompt", "x", "--out", "a.txt"),
            "error: out: 'a.txt' is not accepted; accepted: a file name",
        ),
        (
            ("generate", "m", "--prompt", "x", "--out", "/no/a.wav"),
            "error: out: '/no/a.wav' is not accepted; accepted: a file in",
        ),
    ],
)
def test_an_error_is_one_line_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    """Fault: a traceback for a user's mistake, or an exit code that scripts take for success."""
    code, _, err = run(capsys, *words)
    assert code == 1
    [line] = err.splitlines()
    assert line.startswith(said)


def test_several_problems_are_several_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Fault: what is wrong is told one thing at a time."""
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("max_queued_request: 3\ninline: 7\n")
    words = f"generate {tmp_path} --pipeline causal_lm --prompt x --deploy-config {deploy}"
    code, _, err = run(capsys, *words.split())
    assert code == 1
    assert len(err.splitlines()) >= 2
    assert all(line.startswith("error: ") for line in err.splitlines())


def test_a_command_loads_only_itself() -> None:
    """Fault: printing the models pays for the web framework."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert not {"uvicorn", "fastapi", "numpy", "tqdm", "torch"} & set(done.stdout.split())


def test_one_command_keeps_its_name() -> None:
    """Fault: an application with a single command forgets to ask for its name."""
    assert [command.name for command in application(["models"]).registered_commands] == ["models"]
