"""Every given key has a place: a stage that is there, of a kind that has the key."""

from pathlib import Path

import pytest

from omnistage.config.problems import problems_of
from omnistage.config.resolve import resolve_omni_config
from omnistage.core.errors import ConfigError
from tests.config.samples import REGISTRY


@pytest.mark.parametrize(
    ("model", "text", "error"),
    [
        ("sample", "stages: [{stage_id: 2, max_model_len: 9}]", "stages[0].max_model_len: no key of a diffusion stage"),
        (
            "sample",
            "stages: [{stage_id: 1, kv_cache_bytes: 9}]",
            "no key of an llm_generation stage; it is one of llm_ar",
        ),
        ("sample", "stages: [{stage_id: 4, threads: 1}]", "there is no stage 4; accepted: 0, 1, 2"),
        ("sample", "edges: [{source: 1, target: 2, window: 1}]", "there is no edge 1->2; accepted: 0->1, 0->2"),
        ("large", "edges: [{source: 1, target: 2, window: 1}]", "there is no edge 1->2; accepted: none"),
        (
            "large",
            "ulysses_degree: 1",
            "ulysses_degree: no stage of this pipeline has this key; it is one of diffusion",
        ),
    ],
)
def test_a_key_without_a_place_is_refused(tmp_path: Path, model: str, text: str, error: str) -> None:
    """Fault: a key for nobody, accepted."""
    path = tmp_path / "deploy.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve_omni_config(model, registry=REGISTRY, deploy_config=path)
    (problem,) = problems_of(caught.value)
    assert error in problem


def test_a_wide_key_reaches_the_stages_that_have_it(tmp_path: Path) -> None:
    """Fault: a pipeline-wide key refused because one stage has no use for it."""
    path = tmp_path / "deploy.yaml"
    path.write_text("{max_model_len: 99, ring_degree: 1}")
    resolution = resolve_omni_config("sample", registry=REGISTRY, deploy_config=path)
    assert resolution.provenance["stages.0.max_model_len"] == "deploy.yaml"
    assert resolution.provenance["stages.2.ring_degree"] == "deploy.yaml"
    assert resolution.warnings == ()


def test_a_foreign_habit_on_a_generation_stage_goes_to_the_warning(tmp_path: Path) -> None:
    """Fault: files of engines that run generation stages as language models refused, or believed."""
    path = tmp_path / "deploy.yaml"
    path.write_text("{enable_prefix_caching: false, stages: [{stage_id: 0, max_model_len: 9}]}")
    resolution = resolve_omni_config(
        "voice_only", registry={"voice_only": "tests.config.samples:VOICE_ONLY"}, deploy_config=path
    )
    assert resolution.warnings == ("without meaning here, not used: enable_prefix_caching, stages.0.max_model_len",)
