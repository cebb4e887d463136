"""`omnistage collect-env`: what a report of a problem should say about the machine. Imports nothing heavy to find out."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer

from omnistage.config.env import cache_dir, wants_kernels
from omnistage.modeling.kernels.build import built, compiler

PACKAGES = (
    "omnistage", "torch", "transformers", "tokenizers", "safetensors", "gguf", "onnxruntime", "numpy", "msgspec", "pyzmq",
    "fastapi", "starlette", "uvicorn", "h11", "httpcore", "pydantic", "python-multipart", "pybase64", "prometheus_client",
    "Jinja2", "PyYAML", "av", "pillow", "soundfile", "soxr", "gruut", "gruut_lang_en", "tqdm", "typer", "diffusers",
    "accelerate",
)  # fmt: skip
"""All that the package depends on, and its extra for models."""


def run() -> None:
    """Print versions and facts of this machine."""
    for name, value in facts():
        typer.echo(f"{name}: {value}")


def facts() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "platform", platform.platform()
    yield "cpu", f"{_processor()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores usable"
    yield "memory", _memory()
    yield "cache", str(cache_dir())
    yield "kernels", _kernels()
    for package in PACKAGES:
        yield package, _version(package)


def _processor() -> str:
    """What the machine calls it, or only its kind where /proc does not say."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{named} ({platform.machine()})" if named else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _kernels() -> str:
    if not wants_kernels():
        return "off (OMNISTAGE_KERNELS is 0): torch computes"
    if compiler() is None:
        return "no C++ compiler was found: torch computes, with weights that oneDNN has packed where it can"
    path = built()
    return "not compiled yet: the first start does it, in the background" if path is None else str(path)


def _memory() -> str:
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    total, free = (int(sizes[name].split()[0]) / 2**20 for name in ("MemTotal", "MemAvailable"))
    return f"{total:.1f} GiB, {free:.1f} GiB available"
