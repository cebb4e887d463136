"""Configuration flags of a command line as overrides: `--stage-0-max-num-seqs 4` -> {"stage_0_max_num_seqs": 4}.

Accepts `--key value`, `--key=value`, `--key` and `--no-key` for booleans; dashes and underscores are the same. Mappings,
edges and connectors are written as JSON. A later flag replaces an earlier one. Pure; the values' ranges are checked where
the overrides are resolved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from omnistage.config.keys import KEYS, PIPELINE_KEYS, STAGE_KEYS, WITHOUT_MEANING, split_stage_override
from omnistage.config.overrides import OVERRIDE_SECTIONS
from omnistage.config.values import Boolean, Table, ValueType, parsed
from omnistage.core.errors import ConfigError, did_you_mean

_WORDS_OF_BOOLEANS = ("true", "false", "yes", "no", "on", "off")


def parse_overrides(args: list[str], *, options: Collection[str] = (), **named: Any) -> dict[str, Any]:
    """The overrides in `args`, and those of `named`, which have options of their own (None was not given). Raises ConfigError
    for an unknown flag (with a near one, of the keys' or of the command's own `options`), a flag without its value, and a word
    that belongs to no flag."""
    given = {name: value for name, value in named.items() if value is not None}
    return {**dict(_overrides(list(args), options)), **given}


def options_of(context: Any) -> list[str]:
    """The names of the options that a command itself has, by its context."""
    return [name for parameter in context.command.params for name in (*parameter.opts, *parameter.secondary_opts)]


def _overrides(waiting: list[str], options: Collection[str]) -> Iterator[tuple[str, Any]]:
    waiting.reverse()
    while waiting:
        word = waiting.pop()
        if not word.startswith("--") or word == "--":
            raise ConfigError(f"{word}: unexpected word; configuration flags are --<key> or --stage-<id>-<key>")
        flag, has_value, text = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        value = text if has_value else None
        if name in WITHOUT_MEANING:
            yield name, value if has_value else _optional(waiting)
        elif _type(name) is None and name.startswith("no_"):
            yield _negated(flag, name.removeprefix("no_"), value, options)
        elif isinstance(_type(name), Boolean):
            yield name, _boolean(waiting, value)
        else:
            kind = _known_type(flag, name, options)
            yield name, parsed(kind, value if value is not None else _following(flag, waiting))


def _type(name: str) -> ValueType | None:
    """The type of an override's value, None for an unknown name."""
    if name in OVERRIDE_SECTIONS:
        return Table(texts=False)
    if name in KEYS:
        return KEYS[name].type
    split = split_stage_override(name)
    return KEYS[split[1]].type if split is not None and split[1] in KEYS else None


def _known_type(flag: str, name: str, options: Collection[str]) -> ValueType:
    kind = _type(name)
    if kind is not None:
        return kind
    split = split_stage_override(name)
    prefix = f"stage_{split[0]}_" if split is not None else ""
    known = [f"{prefix}{key.name}" for key in (STAGE_KEYS if prefix else PIPELINE_KEYS)]
    flags = [*(f"--{key.replace('_', '-')}" for key in known), *(word for word in options if word.startswith("--"))]
    raise ConfigError(f"{flag}: unknown flag{did_you_mean(flag, flags)}", field=name)


def _negated(flag: str, name: str, value: str | None, options: Collection[str]) -> tuple[str, bool]:
    kind = _type(name)
    if kind is None:
        _known_type(flag, f"no_{name}", options)
    if not isinstance(kind, Boolean) or value is not None:
        raise ConfigError(
            f"{flag}: only a flag that is true or false has a --no- form, which takes no value", field=name
        )
    return name, False


def _boolean(waiting: list[str], value: str | None) -> Any:
    """`--flag`, `--flag true` and `--flag=true`."""
    if value is None and waiting and waiting[-1].lower() in _WORDS_OF_BOOLEANS:
        value = waiting.pop()
    return True if value is None else parsed(Boolean(), value)


def _optional(waiting: list[str]) -> Any:
    return waiting.pop() if waiting and not waiting[-1].startswith("--") else True


def _following(flag: str, waiting: list[str]) -> str:
    if not waiting or waiting[-1].startswith("--"):
        raise ConfigError(f"{flag}: a value must follow", field=flag)
    return waiting.pop()
