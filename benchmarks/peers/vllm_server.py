"""vLLM's own server over the same folder, run by the interpreter that `vllm_process.VARIABLE` names.

Its front end, its engine and its worker are processes of their own, as it comes; one thread computes, as in ours. It keeps no
prefixes, and says nothing of each request.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.peers.vllm_process import VARIABLE
from benchmarks.servers import Server, serving

ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # OMP_NUM_THREADS then holds, and the kernel chooses the core, as it does for us
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB, as ours
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_START_S = 400.0
"""It compiles the model for minutes, where it is asked to."""


@contextlib.contextmanager
def vllm_server(
    folder: Path, dtype: str, *, streams: int, compiled: bool, environment: Mapping[str, str]
) -> Iterator[Server]:
    """A server that is ready, of at most `streams` requests at a time. KeyError without `VARIABLE`."""
    # What `vllm serve` runs; -P keeps the working directory's modules out of its way.
    command = (os.environ[VARIABLE], "-P", "-m", "vllm.entrypoints.openai.api_server", "--model")
    flags = ("--dtype", dtype, "--max-model-len", "1024", "--max-num-seqs", str(streams), "--no-enable-prefix-caching")
    quiet = ("--host", "127.0.0.1", "--disable-uvicorn-access-log", *(() if compiled else ("--enforce-eager",)))
    cache = {"VLLM_CACHE_ROOT": str(folder.parent / "vllm")}
    whole = {**os.environ, **environment, **ENVIRONMENT, **cache}
    whole.pop("PYTHONPATH", None)  # names our packages
    with serving(str(folder), *flags, *quiet, command=command, environment=whole) as server:
        server.wait((200,), timeout_s=_START_S, pause_s=0.5)
        yield server
