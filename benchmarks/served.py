"""`omnistage` with the benchmarks' own pipelines in its registry: `python -m benchmarks.served serve relay --port N ...`."""

from __future__ import annotations

from omnistage.cli.main import main
from omnistage.models.registry import REGISTRY

PIPELINES = {"relay": "benchmarks.family:RELAY", "simulated": "benchmarks.family:SIMULATED"}

if __name__ == "__main__":
    REGISTRY.update(PIPELINES)
    main()
