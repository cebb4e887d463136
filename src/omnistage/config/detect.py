"""Which pipeline a model is, and the folder it lies in.

Order: a pipeline that is named (by the call, else by the deploy file) > a built-in name of the registry > config.json's
architectures or model_type > the class of model_index.json or modular_model_index.json > a pipeline that takes a whole
pattern of architectures, then one that takes a pattern of such classes. Otherwise ModelNotFoundError says, in one line, all
that was looked at and where. Reading the registry's pipelines is the one import made here, with the hooks `locate`,
`hf_voices` and `hf_config_predicate` of the pipeline chosen. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from omnistage.config.hooks import resolve_hook
from omnistage.config.layers import Given
from omnistage.config.pipeline import PipelineConfig
from omnistage.core.errors import ConfigError, ModelNotFoundError, did_you_mean

_CONFIG = "config.json"
_INDEXES = ("model_index.json", "modular_model_index.json")
_TOKENIZERS = (("tokenizer.json",), ("vocab.json", "merges.txt"))
"""Files of which one group has to be there."""


@dataclass(frozen=True, slots=True)
class Detected:
    """`reason` says why, for provenance; `model_path` is None for a pipeline that needs no files."""

    pipeline: PipelineConfig
    model_path: Path | None
    reason: str


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """What a model's folder says of itself; `looked` is one phrase per file that was looked at."""

    config: Mapping[str, Any] = field(default_factory=dict)
    index_class: str | None = None
    looked: tuple[str, ...] = ()

    @property
    def architectures(self) -> tuple[str, ...]:
        names = self.config.get("architectures")
        return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def detect(model: str, registry: Mapping[str, str], named: Given | None) -> Detected:
    """The pipeline of `model`. Raises ModelNotFoundError, or ConfigError for an unknown pipeline name or a broken family."""
    if named is not None:
        pipeline = read_pipeline(registry, named.value, named.source)
        pipeline = _with_voices(pipeline, look_into(Path(model).expanduser()))
        return Detected(pipeline, locate(pipeline, model, builtin=model in registry), named.source)
    if model in registry:
        pipeline = read_pipeline(registry, model, "model")
        return Detected(pipeline, locate(pipeline, model, builtin=True), "built-in name")
    facts = look_into(Path(model).expanduser())
    pipelines = [read_pipeline(registry, name, "registry") for name in registry]
    claim = next(_claims(pipelines, facts), None)
    if claim is not None:
        pipeline, reason = claim
        return Detected(_with_voices(pipeline, facts), locate(pipeline, model, builtin=False), reason)
    builtin = [name for name, pipeline in zip(registry, pipelines, strict=True) if pipeline.locate is not None]
    looked = [f"built-in names: {', '.join(sorted(builtin)) or 'none'}", *facts.looked]
    near = did_you_mean(model, builtin) if not Path(model).expanduser().exists() else ""
    hint = near if near.startswith("; did") else ""
    raise ModelNotFoundError(f"no pipeline for model {model!r}{hint}; looked at {'; '.join(looked)}", field="model")


def read_pipeline(registry: Mapping[str, str], name: str, where: str) -> PipelineConfig:
    """The PIPELINE that the registry names. Raises ConfigError for an unknown name or a path that is no pipeline."""
    if name not in registry:
        known = did_you_mean(name, registry)
        raise ConfigError(f"{where}: there is no pipeline {name!r}{known}", field="pipeline")
    found = resolve_hook(registry[name])
    if not isinstance(found, PipelineConfig):
        raise ConfigError(f"registry {name!r}: {registry[name]} is no PipelineConfig", field="pipeline")
    return found


def locate(pipeline: PipelineConfig, model: str, *, builtin: bool) -> Path | None:
    """The model's folder: for a built-in name what the pipeline's `locate` says, else the folder `model`.

    None where no stage needs files. A folder of the working directory never stands in for a built-in name.
    """
    folder = Path(model).expanduser()
    if folder.is_dir() and not builtin:
        _need_tokenizer(pipeline, folder)
        return folder.resolve()
    if pipeline.locate is not None:
        found: Any = _callable(pipeline.locate)(model)
        return Path(found)
    if pipeline.hf_architectures or pipeline.diffusers_class_name or any(s.owns_tokenizer for s in pipeline.stages):
        place = "a folder is to be given in its place" if builtin else f"there is no folder {str(folder.absolute())!r}"
        raise ModelNotFoundError(
            f"pipeline {pipeline.model_type!r} needs the folder of a model; {place}", field="model"
        )
    return None


def look_into(folder: Path) -> FolderFacts:
    """Reads what describes a model in `folder`; a file that is missing or broken is a phrase in `looked`."""
    if not folder.exists():
        return FolderFacts(looked=(f"{folder.absolute()}: no such folder",))
    if not folder.is_dir():
        return FolderFacts(looked=(f"{folder.absolute()}: no folder",))
    looked: list[str] = []
    config = _read_json(folder / _CONFIG, looked) or {}
    if config:
        facts = f"model_type {config.get('model_type')!r}, architectures {config.get('architectures')!r}"
        looked.append(f"{folder / _CONFIG}: no pipeline takes {facts}")
    index_class: str | None = None
    for name in _INDEXES:
        index = _read_json(folder / name, looked)
        if index is not None and index_class is None:
            index_class = str(index.get("_class_name"))
            looked.append(f"{folder / name}: no pipeline takes the class {index_class!r}")
    return FolderFacts(config, index_class, tuple(looked))


def _claims(pipelines: list[PipelineConfig], facts: FolderFacts) -> Iterator[tuple[PipelineConfig, str]]:
    """Pipelines that fit, the best reason first."""
    tests: tuple[tuple[str, Callable[[PipelineConfig], bool]], ...] = (
        (f"{_CONFIG} architectures", lambda p: bool(set(p.hf_architectures) & set(facts.architectures))),
        (f"{_CONFIG} model_type", lambda p: p.model_type == facts.config.get("model_type")),
        (
            "model index class",
            lambda p: p.diffusers_class_name is not None and p.diffusers_class_name == facts.index_class,
        ),
        (f"{_CONFIG} architectures, by pattern", lambda p: _fits_pattern(p, facts)),
        ("model index class, by pattern", lambda p: _fits_class_pattern(p, facts)),
    )
    for reason, fits in tests:
        for pipeline in pipelines:
            if fits(pipeline) and _predicate_holds(pipeline, facts):
                yield pipeline, reason


def _fits_pattern(pipeline: PipelineConfig, facts: FolderFacts) -> bool:
    return any(fnmatchcase(name, pattern) for name in facts.architectures for pattern in pipeline.hf_architectures)


def _fits_class_pattern(pipeline: PipelineConfig, facts: FolderFacts) -> bool:
    name, pattern = facts.index_class, pipeline.diffusers_class_name
    return name is not None and pattern is not None and fnmatchcase(name, pattern)


def _predicate_holds(pipeline: PipelineConfig, facts: FolderFacts) -> bool:
    if pipeline.hf_config_predicate is None:
        return True
    return bool(_callable(pipeline.hf_config_predicate)(facts.config))


def _with_voices(pipeline: PipelineConfig, facts: FolderFacts) -> PipelineConfig:
    """`pipeline` with the voices that the model's configuration lists, where the family knows how to read them."""
    if pipeline.hf_voices is None or not facts.config:
        return pipeline
    return replace(pipeline, voices=tuple(_callable(pipeline.hf_voices)(facts.config)))


def _callable(hook: str) -> Callable[..., Any]:
    found = resolve_hook(hook)
    if not callable(found):
        raise ConfigError(f"hook {hook!r} cannot be called", field="hook")
    return found


def _need_tokenizer(pipeline: PipelineConfig, folder: Path) -> None:
    for stage in pipeline.stages:
        if stage.owns_tokenizer and stage.package is None:
            inside = folder / (stage.tokenizer_subdir or stage.model_subdir or "")
            if not any(all((inside / name).is_file() for name in names) for names in _TOKENIZERS):
                missing = f"{inside / _TOKENIZERS[0][0]} is missing, and so are {' and '.join(_TOKENIZERS[1])}"
                raise ModelNotFoundError(
                    f"stage {stage.model_stage!r} of pipeline {pipeline.model_type!r} needs a tokenizer; {missing}",
                    field="model",
                )


def _read_json(path: Path, looked: list[str]) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        looked.append(f"{path}: missing")
    except OSError as error:
        looked.append(f"{path}: cannot be read ({error.strerror})")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        looked.append(f"{path}: broken JSON ({error})")
    else:
        return found
    return None
