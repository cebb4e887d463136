"""Compilers for tests: quick ones, that do what a test wants."""

from __future__ import annotations

from pathlib import Path

import pytest


def quick_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A compiler that does `body`; $out is the file to be made."""
    program = folder / "quick-c++"
    program.write_text(f'#!/bin/sh\nfor out; do :; done\necho ran >> "{folder}/runs"\n{body}\n')
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
