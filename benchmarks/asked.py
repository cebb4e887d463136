"""A process that answers: one line of JSON for each line of JSON, until the end of its input.

Between two questions it waits, and takes nothing of the machine. Knows nothing of what is asked.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class AskedProcess:
    """A running one. What it says beside its answers goes to the standard error."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """RuntimeError where the process has ended instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}; its words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def asked(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[AskedProcess]:
    """It ends with its input, which this closes."""
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield AskedProcess(process)
