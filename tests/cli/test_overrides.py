"""Configuration flags of a command line."""

from typing import Any

import pytest

from omnistage.cli.overrides import parse_overrides
from omnistage.core.errors import ConfigError


@pytest.mark.parametrize(
    ("args", "overrides"),
    [
        ([], {}),
        (["--max-num-seqs", "4"], {"max_num_seqs": 4}),
        (["--max_num_seqs=4"], {"max_num_seqs": 4}),
        (
            ["--stage-0-max-num-seqs", "4", "--stage-voice-threads=2"],
            {"stage_0_max_num_seqs": 4, "stage_voice_threads": 2},
        ),
        (["--threads", "1", "--threads", "2"], {"threads": 2}),
        (["--async-chunk"], {"async_chunk": True}),
        (["--async-chunk", "--inline"], {"async_chunk": True, "inline": True}),
        (["--async-chunk", "false", "--threads", "1"], {"async_chunk": False, "threads": 1}),
        (["--async-chunk=off"], {"async_chunk": False}),
        (["--no-async-chunk"], {"async_chunk": False}),
        (["--no-stage-0-enable-prefix-caching"], {"stage_0_enable_prefix_caching": False}),
        (["--devices", "0"], {"devices": "0"}),
        (["--dtype="], {"dtype": ""}),
        (["--threads", "-1"], {"threads": -1}),
        (["--threads", "many"], {"threads": "many"}),
        (["--stage-0-default-sampling-params", '{"seed": 0}'], {"stage_0_default_sampling_params": {"seed": 0}}),
        (["--edges", '[{"source": 0, "target": 1}]'], {"edges": [{"source": 0, "target": 1}]}),
        (["--trust-remote-code"], {"trust_remote_code": True}),
        (["--trust-remote-code", "--threads", "1"], {"trust_remote_code": True, "threads": 1}),
        (["--load-format", "auto", "--enforce-eager=1"], {"load_format": "auto", "enforce_eager": "1"}),
    ],
)
def test_flags_become_overrides(args: list[str], overrides: dict[str, Any]) -> None:
    """Fault: a spelling that is not understood, or a value of the wrong type."""
    assert parse_overrides(args) == overrides


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--prot", "1"], "--prot: unknown flag; did you mean '--port'?"),
        (["--thread", "1"], "--thread: unknown flag; did you mean '--threads'?"),
        (["--stage-0-max-nm-seqs", "1"], "--stage-0-max-nm-seqs: unknown flag; did you mean '--stage-0-max-num-seqs'?"),
        (["--no-async-chnk"], "--no-async-chnk: unknown flag"),
        (["--no-threads"], "--no-threads: only a flag that is true or false has a --no- form"),
        (["--no-inline=1"], "--no-inline: only a flag that is true or false has a --no- form"),
        (["--threads"], "--threads: a value must follow"),
        (["--threads", "--inline"], "--threads: a value must follow"),
        (["word"], "word: unexpected word"),
        (["--inline", "word"], "word: unexpected word"),
        (["--"], "--: unexpected word"),
        (["-t", "1"], "-t: unexpected word"),
    ],
)
def test_a_wrong_flag_is_named(args: list[str], error: str) -> None:
    """Fault: a typo on a command line that changes nothing and says nothing."""
    with pytest.raises(ConfigError) as caught:
        parse_overrides(args, options=("-h", "--port"))
    assert error in caught.value.message
