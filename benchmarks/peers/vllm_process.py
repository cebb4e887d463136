"""vLLM's offline engine over the same folder, in a process of its own (vllm_side.py) that another interpreter runs.

Its packages exclude ours, so it has an environment of its own; `VARIABLE` names that environment's interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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

    def __init__(self, process: subprocess.Popen[str], folder: Path, dtype: str, *, compiled: bool) -> None:
        self._process = process
        engine = {**_ENGINE, "enforce_eager": not compiled}
        version = self._ask({"folder": str(folder), "dtype": dtype, "engine": engine})["version"]
        self.version = f"{version}, {'compiled' if compiled else 'eager'}"

    def tokens(self, prompts: Sequence[Sequence[int]], count: int) -> tuple[list[list[int]], float]:
        """`count` greedy tokens for each prompt, and the seconds it took by the process's own clock."""
        answer = self._ask({"prompts": prompts, "count": count})
        return answer["tokens"], answer["seconds"]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"vLLM's process ended with {self._process.wait()}; its words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def vllm_side(folder: Path, dtype: str, *, compiled: bool) -> Iterator[VllmSide]:
    """The side, while its process runs; what it compiles lies beside the folder. KeyError without `VARIABLE`."""
    # -P keeps the script's neighbours from being imported in the place of packages.
    command = [os.environ[VARIABLE], "-P", str(_SCRIPT)]
    environment = {**os.environ, **ENVIRONMENT, "VLLM_CACHE_ROOT": str(folder.parent / "vllm")}
    environment.pop("PYTHONPATH", None)  # names our packages
    with subprocess.Popen(  # ends with its input, which this closes
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield VllmSide(process, folder, dtype, compiled=compiled)
