"""The heavy half of a start, with a runtime that starts nothing."""

import json
from pathlib import Path

import pytest

from omnistage.core.errors import ConfigError
from omnistage.serve import load as module
from omnistage.serve.load import load
from omnistage.serve.options import ServeOptions
from tests.fakes_runtime import FakeRuntime


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """What a causal language model's folder looks like from outside."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "tokenizer.json").write_text("{}")
    return str(tmp_path)


def test_a_start_reads_the_flags_and_starts_the_stages(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: flags that are read and not used, stages that nobody starts."""
    started: list[Path | None] = []

    class Starting(FakeRuntime):
        def __init__(self, record_events: Path | None) -> None:
            super().__init__()
            self.record_events = record_events

        def start(self) -> None:
            started.append(self.record_events)

    monkeypatch.setattr(module, "runtime_of", lambda _, *, record_events, **observer: Starting(record_events))
    given = {"pipeline": "causal_lm", "drain_timeout_s": 3.0}
    loaded = load(ServeOptions(folder, overrides=lambda: given, record_events=Path("events")))
    assert started == [Path("events")]
    assert (loaded.drain_timeout_s, loaded.engine.model.modalities) == (3.0, ("text",))


def test_inline_stages_are_refused(folder: str) -> None:
    """Fault: a server whose stages cannot be watched or restarted."""
    with pytest.raises(ConfigError, match="inline"):
        load(ServeOptions(folder, overrides=lambda: {"pipeline": "causal_lm", "inline": True}))
