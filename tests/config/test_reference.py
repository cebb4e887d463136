"""The reference page is made from the table of keys, and the one in the repository is up to date."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from omnistage.config.deploy import read_deploy
from omnistage.config.keys import KEYS
from omnistage.config.problems import ProblemsState
from omnistage.config.reference import reference_page

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_in_the_repository_is_up_to_date() -> None:
    """Fault: documentation of another version. Made by `python -m omnistage.config.reference > docs/configuration.md`."""
    assert PAGE.read_text() == reference_page()


@pytest.mark.parametrize("name", list(KEYS))
def test_every_key_has_one_row(name: str) -> None:
    """Fault: a key that nobody can look up."""
    assert reference_page().count(f"\n| `{name}`") == 1


def test_the_example_on_the_page_is_a_good_file(tmp_path: Path) -> None:
    """Fault: an example that is refused."""
    text = reference_page().split("```yaml\n")[1].split("```")[0]
    path = tmp_path / "deploy.yaml"
    path.write_text(text)
    (tmp_path / "other.yaml").write_text("{}")
    problems = ProblemsState()
    files = read_deploy(path, "cpu", problems)
    problems.raise_if_any()
    assert yaml.safe_load(text)["pipeline"] == "NAME"
    assert files.layers[0]["stages.0.threads"].value == 2


def test_the_module_prints_the_page() -> None:
    """Fault: a way to make the page that does not work."""
    command = [sys.executable, "-m", "omnistage.config.reference"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert printed == reference_page()
