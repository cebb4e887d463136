"""What the built-in model says aloud is what it wrote: a recogniser listens to its answers."""

from __future__ import annotations

import pytest

from omnistage import Omni, OmniRequestOutput
from tests.tools.wer import WordErrors, normalise, word_errors
from tests.tools.whisper import Whisper

pytestmark = pytest.mark.weights

PROMPTS = (
    "What is the capital of France, and what is it famous for?",
    "Why is the sky blue?",
    "Give me one tip for sleeping better.",
    "How do bees make honey?",
    "What should I pack for a day in the mountains?",
    "Explain in two sentences what a computer is.",
    "Who was Albert Einstein?",
    "Why do leaves fall in autumn?",
)
MAX_TOKENS = 48
POOLED_LIMIT = 0.05
SINGLE_LIMIT = 0.15
WORDS = 200


@pytest.fixture(scope="module")
def answers() -> list[OmniRequestOutput]:
    """The eight prompts asked at once, through worker processes, as a user would."""
    with Omni("demo", stage_1_num_replicas=2) as omni:  # two speak with less effort than one with two threads
        conversations = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
        return list(omni.generate(conversations, [{"temperature": 0, "max_tokens": MAX_TOKENS}], use_tqdm=False))


def test_a_recogniser_hears_what_was_written(answers: list[OmniRequestOutput], recogniser: Whisper) -> None:
    """Fault: words dropped, numbers mangled, sound cut off at the borders of cuts or at the end."""
    total = WordErrors(0, 0)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert answer.error is None
        sound = answer.multimodal_output
        heard = recogniser.transcribe(sound.numpy("audio"), sound.metadata["sample_rate"])
        found = word_errors(answer.text, heard)
        print(f"\n{prompt}\n  wrote: {answer.text}\n  heard: {heard}\n  word error rate {100 * found.rate:.1f} %")
        assert found.rate <= SINGLE_LIMIT, prompt
        total += found
    words = sum(len(normalise(answer.text)) for answer in answers)
    print(f"\npooled: {100 * total.rate:.2f} % of {words} words")
    assert words >= WORDS
    assert total.rate <= POOLED_LIMIT
