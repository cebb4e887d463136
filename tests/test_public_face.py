"""The public face: what `omnistage` exports, and what importing it costs.

Faults pinned: a name added to or lost from the face by accident, a lazy name whose home moved, an import that drags
torch into every process that only wanted a name.
"""

import subprocess
import sys

import pytest

import omnistage

PUBLIC = [
    "AsyncOmni",
    "DiffusionParams",
    "GenerationParams",
    "MultimodalPayload",
    "Omni",
    "OmniError",
    "OmniRequestOutput",
    "SamplingParams",
    "__version__",
]


def loaded_after(statement: str) -> set[str]:
    """Names of the top-level modules in a fresh interpreter after `statement`."""
    program = f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(result.stdout.split())


def test_the_face_is_exactly_these_names() -> None:
    """Fault: a helper leaks into the face, or a public name is lost in a move."""
    assert omnistage.__all__ == PUBLIC
    assert sorted(omnistage.__all__) == omnistage.__all__
    assert set(PUBLIC) <= set(dir(omnistage))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_resolves(name: str) -> None:
    """Fault: a lazy name points to a module or an attribute that is no longer there."""
    value = getattr(omnistage, name)
    assert name == "__version__" or value.__name__ == name


def test_an_unknown_name_is_an_attribute_error_that_lists_the_face() -> None:
    """Fault: the lazy look-up answers a misspelt name with something other than AttributeError."""
    with pytest.raises(AttributeError, match=r"'Omnni'.*AsyncOmni"):
        _ = omnistage.Omnni


def test_importing_the_package_loads_no_heavy_library() -> None:
    """Fault: `import omnistage` loads an engine, a web framework or an array library."""
    loaded = loaded_after("import omnistage")
    assert "omnistage" in loaded
    assert not loaded & {"torch", "transformers", "numpy", "fastapi", "uvicorn", "zmq", "onnxruntime"}


def test_using_the_face_does_not_load_torch() -> None:
    """Fault: the engine's own process imports torch, which belongs to the stage workers."""
    loaded = loaded_after("import omnistage; [getattr(omnistage, name) for name in omnistage.__all__]")
    assert not loaded & {"torch", "transformers"}
