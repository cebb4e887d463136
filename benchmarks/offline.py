"""Our own engine without a server, in a process of its own: `python -m benchmarks.offline FOLDER DTYPE`, for benchmarks.serving.

Each line in is `{"prompts": [[id, ...], ...], "count": n}`, answered by `{"tokens": [[id, ...], ...], "seconds": s, "cpu_s": s,
"step_s": s}`, where a step is the mean of those in which every prompt was given a token.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

from benchmarks.decoding import EngineSide


def main() -> None:
    folder, dtype = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is no answer
    torch.set_num_threads(1)
    side = EngineSide(Path(folder), dtype)
    for line in sys.stdin:
        asked = json.loads(line)
        cpu_s = time.process_time()
        tokens, seconds = side.tokens(asked["prompts"], asked["count"])
        cpu_s = time.process_time() - cpu_s
        told = {"tokens": tokens, "seconds": seconds, "cpu_s": cpu_s, "step_s": statistics.fmean(side.full_steps_s)}
        print(json.dumps(told), file=answers)


if __name__ == "__main__":
    main()
