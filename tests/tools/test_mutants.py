"""The mutant runner, on a toy repository: what counts as killed, what survives, what is an error.

Faults pinned: a change that is not applied looks like a survivor or a kill; a test that is red anyway, or does not even
run, counts as a kill.
"""

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

RUNNER = Path(__file__).parents[2] / "tools" / "mutants.py"


def load_runner() -> ModuleType:
    """Load tools/mutants.py, which belongs to no package."""
    spec = importlib.util.spec_from_file_location("mutants_tool", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


runner = load_runner()


@pytest.fixture(autouse=True)
def nothing_is_plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy's tests need no plugin; loading the installed ones takes most of such a run."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A package with one function and two tests, one of which looks at it."""
    package, tests = tmp_path / "src" / "omnistage", tmp_path / "tests"
    package.mkdir(parents=True)
    tests.mkdir()
    (package / "__init__.py").write_text("")
    (package / "toy.py").write_text("def double(x):\n    return 2 * x\n")
    (tests / "test_toy.py").write_text(
        "from omnistage.toy import double\n"
        "def test_value():\n    assert double(3) == 6\n"
        "def test_zero():\n    assert double(0) == 0\n"
    )
    return tmp_path


def add_mutant(repository: Path, name: str, *, find: str = "2 * x", replace: str, test: str = "test_value") -> None:
    path = repository / "tests" / "mutants" / "toy" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'file = "toy.py"\nfind = "{find}"\nreplace = "{replace}"\n'
        f'tests = ["tests/test_toy.py::{test}"]\nfault = "Doubles wrongly."\n'
    )


def test_a_killed_mutant_names_its_test(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: the installed package is tested in place of the copy, so that no mutant is ever noticed."""
    add_mutant(repository, "triple", replace="3 * x")
    assert runner.main([], root=repository) == 0
    assert "killed    toy/triple: Doubles wrongly. [tests/test_toy.py::test_value]" in capsys.readouterr().out
    assert "2 * x" in (repository / "src/omnistage/toy.py").read_text()


def test_a_survivor_fails_the_run(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a mutant that no named test notices is not reported."""
    add_mutant(repository, "triple", replace="3 * x", test="test_zero")
    assert runner.main([], root=repository) == 1
    assert "SURVIVED  toy/triple" in capsys.readouterr().out


@pytest.mark.parametrize("find", ["5 * x", "x"])
def test_the_text_must_stand_there_once(repository: Path, find: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: the code moved on, the change is applied nowhere or twice, and nobody hears of it."""
    add_mutant(repository, "stale", find=find, replace="y")
    assert runner.main([], root=repository) == 2
    assert "ERROR     toy/stale: toy.py holds the text to find" in capsys.readouterr().out


def test_a_mutant_that_does_not_import_is_an_error(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a syntax error counts as a kill although no test looked at anything."""
    add_mutant(repository, "broken", replace="2 *")
    assert runner.main([], root=repository) == 2
    assert "the tests did not run" in capsys.readouterr().out


def test_an_endless_mutant_is_killed_by_the_limit(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a mutant that loops for ever holds up the run."""
    (repository / "src/omnistage/toy.py").write_text("def double(x):\n    while False: pass\n    return 2 * x\n")
    add_mutant(repository, "endless", find="while False", replace="while True")
    assert runner.main(["--limit-s", "5"], root=repository) == 0
    assert "[time limit of 5 s]" in capsys.readouterr().out


def test_red_tests_stop_the_run(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a test that fails anyway seems to kill every mutant."""
    add_mutant(repository, "triple", replace="3 * x", test="test_absent")
    assert runner.main([], root=repository) == 2
    assert "fail without any mutant" in capsys.readouterr().out


def test_only_chooses_by_name(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: `--only` with a misspelt name runs nothing and reports success."""
    add_mutant(repository, "triple", replace="3 * x")
    add_mutant(repository, "same", replace="x * 2")
    assert runner.main(["--only", "triple"], root=repository) == 0
    assert "1 of 1 mutants killed" in capsys.readouterr().out
    assert runner.main(["--only", "tripel"], root=repository) == 2


def test_an_unknown_field_is_an_error(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a misspelt field is ignored."""
    add_mutant(repository, "triple", replace="3 * x")
    path = repository / "tests/mutants/toy/triple.toml"
    path.write_text(path.read_text() + 'tetss = ["x"]\n')
    assert runner.main([], root=repository) == 2
    assert "look at tetss" in capsys.readouterr().out


def test_every_mutant_finds_its_line_once() -> None:
    """Fault: code moves on and a mutant breaks nothing any more."""
    root = Path(__file__).parents[2]
    lost = {}
    for path in (root / "tests/mutants").rglob("*.toml"):
        mutant = tomllib.loads(path.read_text())
        found = (root / "src/omnistage" / mutant["file"]).read_text().count(mutant["find"].strip("\n"))
        if found != 1:
            lost[path.name] = found
    assert not lost
