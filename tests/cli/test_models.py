"""`omnistage models`: one row per model, whether its weights are here or not."""

from pathlib import Path

import pytest

from omnistage.cli.main import main
from omnistage.cli.models import rows
from omnistage.models.registry import REGISTRY


def test_every_model_has_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fault: weights that are not here are said to be, or a model is left out."""
    monkeypatch.setenv("OMNISTAGE_CACHE", str(tmp_path))
    table = {row[0]: row for row in rows()}
    assert table.keys() == REGISTRY.keys()
    assert table["demo"][2:] == (
        "text",
        "text, audio, image",
        "af_heart, am_michael",
        "not here yet: omnistage fetch demo",
    )
    assert table["demo"][1] == "thinker (llm_ar) -> speaker (llm_generation), painter (diffusion)"
    assert table["causal_lm"][5] == "a folder of yours"


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Fault: the command prints nothing, or not under its heads."""
    with pytest.raises(SystemExit) as ended:
        main(["models"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    assert head.split() == ["NAME", "STAGES", "READS", "MAKES", "VOICES", "WEIGHTS"]
    assert len(lines) == len(REGISTRY)
