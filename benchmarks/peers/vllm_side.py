"""vLLM in a process of its own, for an interpreter that has vllm and nothing of this package: `python -P vllm_side.py`.

Lines of JSON. The first in is `{"folder": ..., "dtype": ..., "engine": {...}}`, answered by `{"version": ...}` when the model is
loaded; every other is `{"prompts": [[id, ...], ...], "count": n}`, answered by `{"tokens": [[id, ...], ...], "seconds": s}`. It
ends with the end of its input. What vLLM itself prints goes to the standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import vllm


def tokens(llm: Any, prompts: list[list[int]], count: int) -> tuple[list[list[int]], float]:
    """`count` greedy tokens for each prompt, and the seconds it took."""
    params = vllm.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    begun = time.perf_counter()
    made = llm.generate(asked, params, use_tqdm=False)
    spent_s = time.perf_counter() - begun
    return [list(answer.outputs[0].token_ids) for answer in made], spent_s


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # before anything is printed, by this process or by those below it
    first = json.loads(sys.stdin.readline())
    llm = vllm.LLM(first["folder"], dtype=first["dtype"], **first["engine"])
    print(json.dumps({"version": f"vllm {vllm.__version__}"}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        made, spent_s = tokens(llm, asked["prompts"], asked["count"])
        print(json.dumps({"tokens": made, "seconds": spent_s}), file=answers)


if __name__ == "__main__":
    main()
