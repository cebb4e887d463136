"""vLLM's offline engine over the same folder, in a process of its own (vllm_side.py) that another interpreter runs.

Its packages exclude ours, so it has an environment of its own; `VARIABLE` names that environment's interpreter.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.asked import AskedProcess, asked

VARIABLE = "OMNISTAGE_BENCH_VLLM_PYTHON"
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its engine beside its front end, in one process as ours is: no slower, and one thread
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # OMP_NUM_THREADS then holds, and the kernel chooses the core, as it does for us
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB, as ours
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""Beside what both sides have."""
_SCRIPT = Path(__file__).with_name("vllm_side.py")
_ENGINE = {"enable_prefix_caching": False, "skip_tokenizer_init": True, "max_model_len": 1024, "max_num_seqs": 32}
"""As ours has it. Its own budget of tokens per step is larger, and stays."""


def interpreter() -> str | None:
    return os.environ.get(VARIABLE) or None


class VllmSide:
    """One loaded model in a running process."""

    def __init__(self, process: AskedProcess, folder: Path, dtype: str, *, compiled: bool) -> None:
        self._process = process
        engine = {**_ENGINE, "enforce_eager": not compiled}
        version = process.ask({"folder": str(folder), "dtype": dtype, "engine": engine})["version"]
        self.version = f"{version}, {'compiled' if compiled else 'eager'}"

    def tokens(self, prompts: Sequence[Sequence[int]], count: int) -> tuple[list[list[int]], float]:
        """`count` greedy tokens for each prompt, and the seconds it took by the process's own clock."""
        answer = self._process.ask({"prompts": prompts, "count": count})
        return answer["tokens"], answer["seconds"]


@contextlib.contextmanager
def vllm_side(folder: Path, dtype: str, *, compiled: bool) -> Iterator[VllmSide]:
    """The side, while its process runs; what it compiles lies beside the folder. KeyError without `VARIABLE`."""
    # -P keeps the script's neighbours from being imported in the place of packages.
    command = [os.environ[VARIABLE], "-P", str(_SCRIPT)]
    environment = {**os.environ, **ENVIRONMENT, "VLLM_CACHE_ROOT": str(folder.parent / "vllm")}
    environment.pop("PYTHONPATH", None)  # names our packages
    with asked(command, environment) as process:
        yield VllmSide(process, folder, dtype, compiled=compiled)
