"""The border of an optional library: what is missing is said in one line, with what brings it."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from omnistage.core.errors import ConfigError
from omnistage.modeling.diffusers_library import diffusers_class


def refusal(name: str) -> str:
    """What is said when the class is asked for."""
    with pytest.raises(ConfigError) as caught:
        diffusers_class(name)
    assert "\n" not in caught.value.message
    return caught.value.message


class EulerScheduler: ...


class NeedyPipeline:
    """What the library puts in place of a class that it cannot import."""

    _backends = ("torch", "sentencepiece")


def stand() -> ModuleType:
    """In place of the library."""
    module = ModuleType("diffusers")
    module.__dict__.update(
        __version__="0.1", EulerScheduler=EulerScheduler, NeedyPipeline=NeedyPipeline, helper=lambda: None
    )
    return module


def test_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: a class that is there is not handed out; one that is not comes as an AttributeError, or as whatever has its name."""
    monkeypatch.setitem(sys.modules, "diffusers", stand())
    assert diffusers_class("EulerScheduler") is EulerScheduler
    said = refusal("EulerSchedular")
    assert "diffusers 0.1 has no class 'EulerSchedular'" in said and "did you mean 'EulerScheduler'" in said
    assert "no class 'helper'" in refusal("helper")


def test_what_a_class_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: what stands in for a class with missing packages is taken for the class, and fails when it is used."""
    monkeypatch.setitem(sys.modules, "diffusers", stand())
    said = refusal("NeedyPipeline")
    assert "NeedyPipeline" in said and "sentencepiece" in said


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: who has not installed it reads a traceback and not what to install."""
    monkeypatch.setitem(sys.modules, "diffusers", None)
    said = refusal("EulerScheduler")
    assert "needs the package diffusers" in said and "pip install 'omnistage[diffusers]'" in said


@pytest.mark.parametrize("kind", [ModuleNotFoundError, RuntimeError])
def test_a_library_that_does_not_fit(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    """Fault: a package that the library itself lacks is taken for the library's absence, or comes as a traceback where it shows
    only when a class is asked for."""

    def broken(_name: str) -> type:
        raise kind("No module named\n'safetensors'")

    module = stand()
    module.__dict__["__getattr__"] = broken
    monkeypatch.setitem(sys.modules, "diffusers", module)
    said = refusal("FluxPipeline")
    assert "cannot be imported" in said and "No module named 'safetensors'" in said


def test_it_is_imported_when_it_is_asked_for() -> None:
    """Fault: whoever may need the library pays seconds for it at import."""
    code = "import sys, omnistage.modeling.diffusers_library; print({'diffusers', 'torch'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "set()"
