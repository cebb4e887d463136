"""`omnistage collect-env`: facts, without loading what they are about."""

import pytest

from omnistage import __version__
from omnistage.cli.collect_env import facts
from omnistage.cli.main import main


def test_versions_and_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: a report of a problem that does not say what it ran on."""
    known = dict(facts())
    assert known["omnistage"] == __version__
    assert "cores usable" in known["cpu"]
    assert "GiB available" in known["memory"]
    with pytest.raises(SystemExit) as ended:
        main(["collect-env"])
    assert ended.value.code == 0
    assert f"omnistage: {__version__}" in capsys.readouterr().out
