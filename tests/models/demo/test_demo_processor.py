"""The thinker's prompts on the fetched folder."""

from __future__ import annotations

import pytest

from omnistage.config.stage import ARStageConfig
from omnistage.core.params import SamplingParams
from omnistage.core.request import OmniRequest, Prompt
from omnistage.models.demo.processor import load_processor
from omnistage.models.demo.weights import DemoWeights


@pytest.mark.weights
def test_a_question_is_written_as_the_template_says(demo_weights: DemoWeights) -> None:
    """Fault: the chat template is not applied, and the model goes on with the question instead of answering."""
    config = ARStageConfig(
        stage_id=0,
        model_stage="thinker",
        model_path=str(demo_weights.thinker_dir),
        loader="x:y",
        process="thinker",
    )
    processor = load_processor(config)
    prompt = Prompt(messages=({"role": "user", "content": "Hi"},))
    request = OmniRequest(request_id="r", prompt=prompt, wants=("text",), stage_params={0: SamplingParams()})
    text = processor.tokenizer.decode(list(processor(request).token_ids), skip_special_tokens=False)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
