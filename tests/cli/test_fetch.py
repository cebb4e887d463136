"""`omnistage fetch`: the pipeline's own hook, its progress, and names that have nothing to fetch."""

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from omnistage.cli import fetch as command
from omnistage.cli.fetch import fetch
from omnistage.cli.main import main
from omnistage.core.errors import FetchError, ModelNotFoundError


def test_the_hook_is_called_and_the_folder_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault: progress that breaks the fetch, or a folder that nobody is told of."""
    told: list[tuple[str, int, int]] = []

    def bring(progress: Callable[[str, int, int], None]) -> Path:
        for step in ((f"part {n}", n, 2) for n in range(3)):
            progress(*step)
            told.append(step)
        return tmp_path

    module = types.ModuleType("fetching_for_tests")
    module.bring = bring  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fetching_for_tests", module)
    monkeypatch.setattr(command, "REGISTRY", {"small": "x:PIPELINE"})
    monkeypatch.setattr(command, "read_pipeline", lambda *_: types.SimpleNamespace(fetch="fetching_for_tests:bring"))
    with pytest.raises(SystemExit) as ended:
        main(["fetch", "small"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"small is in {tmp_path}\n"
    assert told[-1] == ("part 2", 2, 2)


def test_what_cannot_be_fetched_is_told() -> None:
    """Fault: a name without weights, or no name at all, ends in a traceback."""
    with pytest.raises(ModelNotFoundError, match="did you mean 'demo'"):
        fetch("dem")
    with pytest.raises(ModelNotFoundError, match=r"accepted: demo$"):
        fetch("gpt2")
    with pytest.raises(FetchError, match="no weights of its own"):
        fetch("causal_lm")
