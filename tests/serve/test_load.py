"""The heavy half of a start, with a runtime that starts nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnistage.core.errors import ConfigError
from omnistage.serve import load as module
from omnistage.serve.attachments import Attachments
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


def test_what_may_be_read_is_settled_at_the_start(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a host that is misspelt shows when the first request names it; or hosts are open and nothing can fetch."""
    monkeypatch.setattr(module, "runtime_of", lambda _, **__: FakeRuntime())
    given: dict[str, Any] = {"overrides": lambda: {"pipeline": "causal_lm"}}
    with pytest.raises(ConfigError, match=r"--allowed-media-domains: 'http://a.org' is not accepted"):
        load(ServeOptions(folder, allowed_media_domains=("http://a.org",), **given))
    with pytest.raises(ConfigError, match="--allowed-local-media-path"):
        load(ServeOptions(folder, allowed_local_media_path=Path("/nowhere"), **given))
    made: list[Attachments] = []

    class Noted(Attachments):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words)
            made.append(self)

    monkeypatch.setattr(module, "Attachments", Noted)
    load(ServeOptions(folder, **given))
    load(ServeOptions(folder, allowed_media_domains=("a.org",), **given))
    assert [attachments.fetches for attachments in made] == [False, True]


def test_inline_stages_are_refused(folder: str) -> None:
    """Fault: a server whose stages cannot be watched or restarted."""
    with pytest.raises(ConfigError, match="inline"):
        load(ServeOptions(folder, overrides=lambda: {"pipeline": "causal_lm", "inline": True}))
