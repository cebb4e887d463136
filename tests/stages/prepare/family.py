"""A processor that obeys, for helpers in tests: one input per word of the prompt. Words that are orders:

p-exit   the process dies at once          p-hang   nothing comes of it           p-sleep  it takes a quarter second
p-refuse the request is refused            p-odd    a value that cannot travel    p-once   dies where the model's folder has
p-arrays tensors and every kind of plain data              no mark of it yet, and is prepared the next time
p-where  tells the process and its modules                p-limits tells what it may take of the machine
p-fill   asks for a gigabyte of memory
"""

import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from omnistage.config.stage import StageConfig
from omnistage.core.errors import InvalidRequestError
from omnistage.core.payload import Tensor
from omnistage.core.request import OmniRequest, Prompt
from omnistage.modeling.protocols import StageInput
from tests.fakes import echo_config

MODULE = "tests.stages.prepare.family"


class Words:
    """A GenerationProcessor; what it makes of prompts without orders may be kept."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __call__(self, request: OmniRequest) -> list[StageInput]:
        return [StageInput(self._made(word)) for word in (request.prompt.text or "").split()]

    def depends_on_prompt_alone(self, prompt: Prompt) -> bool:
        return "p-" not in (prompt.text or "")

    def _made(self, word: str) -> dict[str, Any]:
        match word:
            case "p-exit":
                os._exit(3)
            case "p-hang":
                time.sleep(60)
            case "p-sleep":
                time.sleep(0.25)
            case "p-refuse":
                raise InvalidRequestError.of("prompt", word, "any other word")
            case "p-odd":
                return {"word": ("a", "tuple")}
            case "p-where":
                return {"word": word, "pid": os.getpid(), "torch": "torch" in sys.modules}
            case "p-once" if not self._mark.exists():
                self._mark.touch()
                os._exit(3)
        return TOLD[word]() if word in TOLD else {"word": word}


def arrays() -> dict[str, Any]:
    """Fresh every time."""
    return {
        "word": "p-arrays",
        "rows": np.arange(6, dtype=np.float32).reshape(2, 3),
        "turned": np.arange(6, dtype=np.int64).reshape(2, 3).T,
        "none": np.zeros((0, 4), np.uint8),
        "own": Tensor.of(np.array([1.5, -2.0])),
        "plain": {"list": [1, 2.5, None, True, "x", b"\x00"], "dict": {}},
    }


def limits() -> dict[str, Any]:
    """Seconds of processor time and bytes, used and allowed, of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return {
        "word": "p-limits",
        "used_s": used.ru_utime + used.ru_stime,
        "most_s": resource.getrlimit(resource.RLIMIT_CPU)[0],
        "held_nbytes": pages * resource.getpagesize(),
        "most_nbytes": resource.getrlimit(resource.RLIMIT_AS)[0],
    }


def filled() -> dict[str, Any]:
    return {"word": "p-fill", "nbytes": len(bytes(2**30))}


TOLD = {"p-arrays": arrays, "p-limits": limits, "p-fill": filled}


def load_words(config: StageConfig) -> Words:
    return Words(Path(config.model_path) / "mark")


def load_nothing(config: StageConfig) -> Words:
    raise FileNotFoundError(f"no words in {config.model_path}")


def load_late(config: StageConfig) -> Words:
    time.sleep(0.3)
    return load_words(config)


def load_and_die(config: StageConfig) -> Words:
    os._exit(4)


def entry(**changes: Any) -> StageConfig:
    """An entry stage with one helper."""
    return echo_config(**{"processor": f"{MODULE}:load_words", "processor_workers": 1, **changes})
