"""What a call overrides, as the strongest layer: names of keys, or `stage_<id or alias>_<key>` for one stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnistage.config.deploy import SectionReader
from omnistage.config.keys import KEYS, PIPELINE_KEYS, STAGE_KEYS, WITHOUT_MEANING, split_stage_override
from omnistage.config.layers import Given, Layer
from omnistage.config.pipeline import PipelineConfig
from omnistage.config.problems import ProblemsState
from omnistage.core.errors import ConfigError, did_you_mean

SOURCE = "cli"
OVERRIDE_SECTIONS = ("edges", "connectors")
"""Sections of a deploy file that a call may give whole."""


def override_layer(
    overrides: Mapping[str, Any], pipeline: PipelineConfig, problems: ProblemsState
) -> tuple[Layer, tuple[str, ...]]:
    """The layer of a call, and the keys without meaning among the overrides. Entries that are None were not given."""
    reader = SectionReader(SOURCE, problems, words="")
    layer: dict[str, Given] = {}
    for name, value in overrides.items():
        if value is None:
            continue
        if name in WITHOUT_MEANING:
            reader.ignored.append(name)
        elif name in OVERRIDE_SECTIONS:
            layer.update(reader.layer({name: value}))
        elif name in KEYS and KEYS[name].may_stand_pipeline_wide:
            reader.put(layer, "", "", reader.keys("", {name: value}, PIPELINE_KEYS))
        elif name in KEYS:
            problems.add(ConfigError(f"{name}: this key is for one stage: stage_<id>_{name}", field=name))
        else:
            _put_for_stage(reader, layer, name, value, pipeline)
    return layer, tuple(reader.ignored)


def _put_for_stage(
    reader: SectionReader, layer: dict[str, Given], name: str, value: Any, pipeline: PipelineConfig
) -> None:
    split = split_stage_override(name)
    if split is None:
        near = did_you_mean(name, [*(key.name for key in PIPELINE_KEYS), *OVERRIDE_SECTIONS])
        reader.problems.add(ConfigError(f"{name}: unknown key{near}", field=name))
        return
    token, key = split
    stage_id = int(token) if token.isdecimal() else pipeline.stage_cli_aliases.get(token)
    if stage_id is None:
        known = [*(str(stage.stage_id) for stage in pipeline.stages), *pipeline.stage_cli_aliases]
        reader.problems.add(ConfigError(f"{name}: there is no stage {token!r}{did_you_mean(token, known)}", field=name))
        return
    prefix = f"stage_{token}_"
    reader.put(layer, f"stages.{stage_id}.", prefix, reader.keys(prefix, {key: value}, STAGE_KEYS))
