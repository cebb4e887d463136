"""`omnistage serve`: what the flags become."""

from pathlib import Path

import pytest

from omnistage.cli import serve as command
from omnistage.cli.main import main
from omnistage.core.errors import ConfigError
from omnistage.serve.options import ServeOptions


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServeOptions]:
    """Options of the servers that would have been started."""
    taken: list[ServeOptions] = []

    def serve(options: ServeOptions) -> int:
        taken.append(options)
        return 0

    monkeypatch.setattr(command, "serve", serve)
    return taken


def call(*words: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(["serve", *words])
    return ended.value.code


def test_flags_and_overrides(served: list[ServeOptions]) -> None:
    """Fault: a flag that is accepted and has no effect."""
    words = "m --omni --host 0.0.0.0 --port 0 --api-key k --deploy-config f.yaml --pipeline p --platform cuda --no-async-chunk"
    assert call(*words.split(), "--stage-0-max-num-seqs", "4", "--request-timeout-s=5") == 0
    [options] = served
    assert (options.model, options.host, options.port, options.api_key) == ("m", "0.0.0.0", 0, "k")
    assert options.deploy_config == "f.yaml"
    assert options.overrides() == {
        "pipeline": "p",
        "platform": "cuda",
        "async_chunk": False,
        "stage_0_max_num_seqs": 4,
        "request_timeout_s": 5,
    }


def test_a_misspelt_flag_of_its_own_is_known(served: list[ServeOptions]) -> None:
    """Fault: `--prot` is taken for a key of the configuration, and `--host` proposed."""
    assert call("m", "--prot", "1") == 0
    with pytest.raises(ConfigError, match="--prot: unknown flag; did you mean '--port'"):
        served[0].overrides()


def test_what_was_not_said_is_not_overridden(served: list[ServeOptions]) -> None:
    """Fault: a flag's default hides what the deploy file says."""
    assert call("m") == 0
    assert served[0].overrides() == {}
    assert (served[0].port, served[0].host, served[0].api_key) == (8091, "127.0.0.1", None)


def test_where_media_may_be_read_from(served: list[ServeOptions]) -> None:
    """Fault: a flag that is given twice counts once, or one that was not given opens something."""
    call("m")
    call(*["m", "--allowed-media-domains", "a.org,b.org:8080", "--allowed-media-domains", "127.0.0.1:9"])
    call("m", "--allowed-local-media-path", "/media")
    assert [(options.allowed_media_domains, options.allowed_local_media_path) for options in served] == [
        ((), None),
        (("a.org,b.org:8080", "127.0.0.1:9"), None),
        ((), Path("/media")),
    ]


def test_what_is_for_looking_into_is_off_unless_asked_for(served: list[ServeOptions]) -> None:
    """Fault: a server that writes requests into a file, or shows its inside, without having been told to."""
    call("m")
    call("m", "--debug", "--record-events", "events.jsonl")
    assert [(options.debug, options.record_events) for options in served] == [
        (False, None),
        (True, Path("events.jsonl")),
    ]


def test_async_chunk_has_three_states(served: list[ServeOptions]) -> None:
    """Fault: a boolean that cannot be left unsaid."""
    call("m", "--async-chunk")
    assert served[0].overrides() == {"async_chunk": True}


def test_a_flag_that_is_none_is_told(served: list[ServeOptions]) -> None:
    """Fault: a misspelt key is passed over in silence."""
    call("m", "--stage-0-max-num-sqs", "4")
    with pytest.raises(
        ConfigError, match=r"--stage-0-max-num-sqs: unknown flag; did you mean '--stage-0-max-num-seqs'"
    ):
        served[0].overrides()
