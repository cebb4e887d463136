"""`omnistage collect-env`: facts, without loading what they are about."""

import re
import tomllib
from pathlib import Path

import pytest

from omnistage import __version__
from omnistage.cli.collect_env import PACKAGES, facts
from omnistage.cli.main import main


def test_versions_and_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a report of a problem that does not say what it ran on."""
    known = dict(facts())
    assert known["omnistage"] == __version__
    assert "cores usable" in known["cpu"]
    assert "GiB available" in known["memory"]
    assert "compile" in known["kernels"] or known["kernels"].endswith(".so")
    with pytest.raises(SystemExit) as ended:
        main(["collect-env"])
    assert ended.value.code == 0
    assert f"omnistage: {__version__}" in capsys.readouterr().out


def test_all_that_is_installed_with_the_package_is_told() -> None:
    """Fault: a dependency is added, and reports do not say which version there is."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["diffusers"]]
    assert sorted(re.split(r"[^\w.-]", line)[0] for line in named) == sorted(set(PACKAGES) - {"omnistage"})


def test_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a report does not say that the kernels are switched off, or that there is no compiler."""
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert "no C++ compiler" in dict(facts())["kernels"]
    monkeypatch.setenv("OMNISTAGE_KERNELS", "0")
    assert "OMNISTAGE_KERNELS is 0" in dict(facts())["kernels"]
