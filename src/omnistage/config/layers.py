"""Given values in order of strength: the overrides of a call, then each deploy file, the nearest first.

A layer maps a key's path to what was given and where. Paths are what provenance shows:

    request_timeout_s              a key of the whole pipeline, or given pipeline-wide for its stages
    stages.0.max_num_seqs          a key of stage 0
    stages.0.env.NAME              an entry of a mapping: mappings are merged entry by entry
    edges.0->1.chunk.first         a key of an edge
    connectors.NAME, voices.NAME   an entry of a section

The strongest layer that has a path wins; within one layer a stage's own path beats the pipeline-wide one. Knows neither
defaults nor types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Given:
    """A value, its source ("cli", "deploy.yaml stages[0]", "platform cpu (deploy.yaml)"), and `where`, as its author wrote
    it ("deploy.yaml stages[0].threads", "stage_0_threads"), for messages."""

    value: Any
    source: str
    where: str


Layer = Mapping[str, Given]


@dataclass(frozen=True, slots=True)
class Layers:
    """Strongest first."""

    layers: tuple[Layer, ...] = ()

    def first(self, *paths: str) -> Given | None:
        """What the strongest layer says that has one of `paths`; within a layer the earlier path wins."""
        for layer in self.layers:
            for path in paths:
                if path in layer:
                    return layer[path]
        return None

    def entries(self, prefix: str) -> dict[str, Given]:
        """The entries of the mapping at `prefix`, each from its strongest layer; weaker layers come first in the order."""
        merged: dict[str, Given] = {}
        for layer in reversed(self.layers):
            for path, given in layer.items():
                if path.startswith(f"{prefix}."):
                    merged[path.removeprefix(f"{prefix}.")] = given
        return merged

    def all(self) -> Iterator[tuple[str, Given]]:
        """Everything that was given, winner or not."""
        for layer in self.layers:
            yield from layer.items()
