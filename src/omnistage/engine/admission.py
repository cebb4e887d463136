"""From what a caller asks to an `OmniRequest`: prompts are read in engine.prompts, modalities and parameters are checked here.

Pure, but for the seed and the id that an admitted request is given. Python, the command line and HTTP all come through
`admit`, so a mistake reads the same everywhere: an InvalidRequestError that names the field and what is accepted.

Parameters of a stage, later wins: the stage's defaults, the call's `fields`, the stage's entry of `sampling_params_list`,
the pipeline's constraints. A field goes to the first stage whose kind knows it; `seed` is the whole request's.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec

from omnistage.core.errors import InvalidRequestError
from omnistage.core.params import MAX_SEED, SamplingParams, StageParams, overlay, params_from
from omnistage.core.request import OmniRequest, Prompt
from omnistage.engine.media import MediaReader, read_given
from omnistage.engine.prompts import read_prompt
from omnistage.engine.served import DRAWING_KEYS, ServedModel, ServedStage

MAX_PRIORITY = 2**31 - 1
_SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class Ask:
    """What a caller asks for. `prompt` is a string, a list of chat messages, or a dict (see `prompts.COMMON_KEYS`).

    `fields` are parameters that name no stage ("temperature", "voice"); what several stages know goes to the one that makes
    `fields_of` (a modality), else to the first. `wants` holds when the prompt names no modalities;
    None there means what the model makes unasked. `timeout_s` None is the deployment's own limit. `read_media` makes media of
    what stands for them in the prompt; unless another one is given, no file is opened.
    """

    prompt: object
    sampling_params_list: object = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    fields_of: str | None = None
    wants: tuple[str, ...] | None = None
    priority: int = 0
    stream: bool = False
    timeout_s: float | None = None
    read_media: MediaReader = read_given


def admit(model: ServedModel, ask: Ask) -> OmniRequest:
    """The request, complete: its id, seeds and every stage's parameters are settled. Raises InvalidRequestError."""
    prompt, named = read_prompt(model, ask.prompt, ask.read_media)
    wants = read_modalities(model, ask.wants if named is None else named)
    params = stage_params(model, ask)
    for stage in model.stages:
        _check_choices(params[stage.stage_id], wants)
    _check_priority(ask.priority)
    _require_sendable(prompt)
    return OmniRequest(
        request_id=uuid4().hex,
        prompt=prompt,
        wants=wants,
        stage_params=params,
        priority=ask.priority,
        stream=ask.stream,
        timeout_s=model.request_timeout_s if ask.timeout_s is None else ask.timeout_s,
    )


def _require_sendable(prompt: Prompt) -> None:
    """What cannot be told to another process is refused here: later it would be the fault of whoever tries to."""
    named = {
        "prompt": prompt.text,
        "messages": prompt.messages,
        "additional_information": prompt.additional_information,
        "mm_processor_kwargs": prompt.mm_processor_kwargs,
    }
    for name, value in named.items():
        try:
            msgspec.msgpack.encode(value)
        except UnicodeEncodeError:
            raise InvalidRequestError.no_text(name) from None
        except (TypeError, OverflowError, RecursionError) as error:
            accepted = "texts, numbers of at most 64 bits, lists and dicts"
            raise InvalidRequestError(f"{name}: {error}; accepted: {accepted}", field=name) from None


# ---- modalities ------------------------------------------------------------------------------------------------------


def read_modalities(model: ServedModel, value: object) -> tuple[str, ...]:
    """The modalities asked for, in the pipeline's order; None asks for what the model makes unasked."""
    if value is None:
        return model.unasked
    accepted = f"a list of one or more of {', '.join(model.modalities)}"
    if not isinstance(value, list | tuple) or not value:
        raise InvalidRequestError.of("modalities", value, accepted)
    for modality in value:
        if modality not in model.modalities:
            raise InvalidRequestError.of("modalities", modality, accepted)
    return tuple(modality for modality in model.modalities if modality in value)


# ---- parameters ------------------------------------------------------------------------------------------------------


def stage_params(model: ServedModel, ask: Ask) -> dict[int, StageParams]:
    """Every stage's parameters by stage id, seeded."""
    entries = _entries(model, ask.sampling_params_list)
    homes = _homes(model, ask.fields, ask.fields_of)
    _add_drawing(model, ask.prompt, homes)
    settled: dict[int, StageParams] = {}
    for index, stage in enumerate(model.stages):
        params = overlay(stage.defaults, _named_voice(model, homes.get(stage.stage_id, {}), ""))
        settled[stage.stage_id] = _constrained(stage, _with_entry(model, params, entries[index], index))
    seed = _request_seed(ask.fields, settled)
    return {
        stage_id: params if params.seed is not None else overlay(params, {"seed": seed})
        for stage_id, params in settled.items()
    }


def _entries(model: ServedModel, value: object) -> list[object]:
    """One entry per stage; None where the caller says nothing. A single value that is no list stands for the first stage."""
    count = len(model.stages)
    entries = [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
    if len(entries) > count:
        names = ", ".join(stage.name for stage in model.stages)
        raise InvalidRequestError.of("sampling_params_list", f"{len(entries)} entries", f"at most {count} ({names})")
    return entries + [None] * (count - len(entries))


def _homes(model: ServedModel, fields: Mapping[str, Any], first: str | None) -> dict[int, dict[str, Any]]:
    """Which stage each field goes to; that which makes `first` is asked before the others. A field that no stage knows is an
    error that lists those there are."""
    homes: dict[int, dict[str, Any]] = {}
    stages = sorted(model.stages, key=lambda stage: first is None or stage.makes != first)
    for name, value in fields.items():
        if name == "seed":
            continue
        stage = next((stage for stage in stages if name in stage.defaults.__struct_fields__), None)
        if stage is None:
            known = {field for stage in model.stages for field in stage.defaults.__struct_fields__}
            raise InvalidRequestError.unknown(name, known)
        homes.setdefault(stage.stage_id, {})[name] = value
    return homes


def _add_drawing(model: ServedModel, prompt: object, homes: dict[int, dict[str, Any]]) -> None:
    """What a prompt says of its own picture goes to the stage that makes it, and wins over what is said for all prompts."""
    if isinstance(prompt, dict) and "image" in model.modalities:
        said = {name: prompt[name] for name in DRAWING_KEYS if prompt.get(name) is not None}
        if said:
            homes.setdefault(model.maker("image").stage_id, {}).update(said)


def _with_entry(model: ServedModel, params: StageParams, entry: object, index: int) -> StageParams:
    """`params` overlaid by a stage's entry. An object says every field; where it says None, `params` holds."""
    where = f"sampling_params_list[{index}]."
    match entry:
        case None:
            return params
        case dict():
            return overlay(params, _named_voice(model, entry, where), where=where)
        case _ if isinstance(entry, type(params)):
            said = {name: getattr(entry, name) for name in entry.__struct_fields__}
            values = {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}
            given = {name: value for name, value in values.items() if value is not None}
            return overlay(params, _named_voice(model, given, where), where=where)
        case _:
            raise InvalidRequestError.of(where.rstrip("."), entry, f"{type(params).__name__} or an object")


def _named_voice(model: ServedModel, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`values` with another service's voice name replaced by this model's."""
    voice = values.get("voice")
    if voice is None:
        return dict(values)
    known = (*model.voices, *model.voice_aliases)
    if not isinstance(voice, str) or voice not in known:
        accepted = f"one of {', '.join(known)}" if known else "nothing, as this model has one voice"
        raise InvalidRequestError.of(f"{where}voice", voice, accepted)
    return {**values, "voice": model.voice_aliases.get(voice, voice)}


def _constrained(stage: ServedStage, params: StageParams) -> StageParams:
    """The pipeline's constraints on top. Lists (stop ids) are joined with the caller's, so that neither is lost."""
    values: dict[str, Any] = {}
    for name, value in stage.constraints.items():
        joins = isinstance(value, list | tuple)
        values[name] = list(dict.fromkeys([*value, *getattr(params, name)])) if joins else value
    return overlay(params, values)


def _request_seed(fields: Mapping[str, Any], settled: Mapping[int, StageParams]) -> int:
    """The call's seed, else the first that a stage was given, else a fresh one: one seed makes a whole answer repeatable."""
    given = fields.get("seed")
    if given is not None:
        return params_from(SamplingParams, {"seed": given}).seed or 0
    found = next((params.seed for params in settled.values() if params.seed is not None), None)
    return secrets.randbits(_SEED_BITS) & MAX_SEED if found is None else found


def _check_choices(params: StageParams, wants: tuple[str, ...]) -> None:
    if isinstance(params, SamplingParams) and params.n > 1 and wants != ("text",):
        raise InvalidRequestError.of("n", params.n, f"1 where more than text is asked for ({', '.join(wants)})")


def _check_priority(priority: object) -> None:
    if type(priority) is not int or abs(priority) > MAX_PRIORITY:
        raise InvalidRequestError.of("priority", priority, f"an integer in [-{MAX_PRIORITY}, {MAX_PRIORITY}]")
