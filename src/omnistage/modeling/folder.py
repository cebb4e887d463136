"""The JSON files of a model folder in Hugging Face layout. Every fault is one line that says what was looked for and where
(BrokenCheckpointError). Knows no model, no weights and no torch: what prepares prompts reads folders too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from omnistage.core.errors import BrokenCheckpointError

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"


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
