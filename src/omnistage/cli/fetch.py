"""`omnistage fetch NAME`: brings the weights of a built-in model into the user's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from omnistage.config.detect import read_pipeline
from omnistage.config.hooks import resolve_hook
from omnistage.core.errors import FetchError, ModelNotFoundError, did_you_mean
from omnistage.models.registry import REGISTRY


def run(name: Annotated[str, typer.Argument(help="The name of a built-in model.")]) -> None:
    """Fetch a model's weights. What is there already is checked and kept."""
    typer.echo(f"{name} is in {fetch(name)}")


def fetch(name: str) -> Path:
    """The model's folder. Raises ModelNotFoundError for an unknown name and FetchError where there is nothing to fetch."""
    if name not in REGISTRY:
        known = [other for other in REGISTRY if read_pipeline(REGISTRY, other, "name").fetch is not None]
        raise ModelNotFoundError(f"{name}: there is no built-in model of that name{did_you_mean(name, known)}")
    hook = read_pipeline(REGISTRY, name, "name").fetch
    if hook is None:
        raise FetchError(f"{name}: has no weights of its own to fetch; it serves a folder")
    fetch_weights: Any = resolve_hook(hook)
    with tqdm(bar_format="{n_fmt}/{total_fmt} {bar} {desc}", leave=False, disable=None) as bar:

        def show(message: str, done: int, total: int) -> None:
            bar.total, bar.n = total, done
            bar.set_description_str(message)

        return Path(fetch_weights(show))
