"""The JSON files of a model folder in Hugging Face layout. Every fault is one line that says what was looked for and where
(BrokenCheckpointError). Knows no model, no weights and no torch: what prepares prompts reads folders too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from omnistage.core.errors import BrokenCheckpointError

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
DIFFUSERS_WEIGHTS = "diffusion_pytorch_model.safetensors"


@dataclass(frozen=True, slots=True)
class Section:
    """An object of a JSON file. `where` is what messages call it: "config.json: thinker_config"."""

    values: Mapping[str, Any]
    where: str

    def section(self, key: str) -> Section:
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        separator = ": " if self.where.endswith(".json") else "."
        return Section(value, f"{self.where}{separator}{key}")

    def integer(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        value = self.values.get(key, default)
        if type(value) is not int or value < least:
            raise self.wrong(key, value, f"an integer >= {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.values.get(key, default)
        if type(value) not in (int, float) or not value > 0:
            raise self.wrong(key, value, "a number > 0")
        return float(value)

    def numbers(self, key: str, default: tuple[float, ...], count: int) -> tuple[float, ...]:
        value = self.values.get(key, default)
        match value:
            case [*items] if len(items) == count and all(type(item) in (int, float) for item in items):
                return tuple(float(item) for item in items)
        raise self.wrong(key, value, f"a list of {count} numbers")

    def integers(self, key: str, default: tuple[int, ...], *, least: int) -> tuple[int, ...]:
        value = self.values.get(key, default)
        match value:
            case [*items] if all(type(item) is int and item >= least for item in items):
                return tuple(items)
        raise self.wrong(key, value, f"a list of integers >= {least}")

    def word(self, key: str, default: str, accepted: tuple[str, ...]) -> str:
        """One of `accepted`."""
        value = self.values.get(key, default)
        if value not in accepted:
            raise self.wrong(key, value, " or ".join(accepted))
        return str(value)

    def same(self, key: str, default: int, wanted: int, whose: str) -> int:
        """An integer that is stated here too, and is `wanted`, as `whose` weights have it."""
        found = self.integer(key, default)
        if found != wanted:
            raise self.wrong(key, found, f"{wanted}, as {whose} has it")
        return wanted

    def wrong(self, key: str, value: object, accepted: str) -> BrokenCheckpointError:
        found = "missing" if value is None else f"{value!r}"
        return BrokenCheckpointError(f"{self.where}: {key} is {found}; accepted: {accepted}")


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object that must be there."""
    found = read_json_if_any(folder, name)
    if found is None:
        what = "is no folder" if not folder.is_dir() else f"has no {name}"
        raise BrokenCheckpointError(
            f"{folder} {what}; looked for a model folder with {CONFIG}, {WEIGHTS} and tokenizer.json"
        )
    return found


def read_json_if_any(folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / name
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise BrokenCheckpointError(f"{path} cannot be read as a JSON object: {error}") from None


def eos_token_ids(folder: Path, *names: str) -> frozenset[int]:
    """`eos_token_id` (one or several) of the first of the JSON files `names` that has it."""
    for name in names:
        match (read_json_if_any(folder, name) or {}).get("eos_token_id"):
            case int() as token:
                return frozenset([token])
            case [*tokens] if tokens and all(isinstance(token, int) for token in tokens):
                return frozenset(tokens)
    return frozenset()
