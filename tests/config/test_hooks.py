"""Hook names: what is refused without an import, and what an import gives."""

import sys
from pathlib import Path

import pytest

from omnistage.config.hooks import hook_fault, resolve_hook
from omnistage.core.errors import ConfigError
from tests.config import samples

MODULE = '''
"""Names bound in every way that a module can bind them."""
import os.path
import json as reader
from pathlib import Path as Folder
plain = 1
first, [second, *rest] = 1, (2, 3)
typed: int = 1
only_declared: int
def function(): inner = 1
async def coroutine(): ...
class Kind: attribute = 1
if plain:
    under_if = 1
else:
    under_else = 1
try:
    under_try = 1
except ValueError:
    under_handler = 1
finally:
    under_finally = 1
with open("x") as opened:
    under_with = 1
for turn in (1, 2):
    under_for = 1
squares = [element for element in (1, 2)]
(walrus := 1)
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that would fail if it were imported."""
    (tmp_path / "hooked_names.py").write_text(f"{MODULE}\nraise RuntimeError('imported')\n")
    (tmp_path / "hooked_folder").mkdir()
    (tmp_path / "hooked_broken.py").write_text("def (:\n")
    (tmp_path / "hooked_latin.py").write_bytes(b'x = "\xe9"\n')
    monkeypatch.syspath_prepend(tmp_path)
    return "hooked_names"


@pytest.mark.parametrize(
    "name",
    """os reader Folder plain first second rest typed function coroutine Kind under_if under_else under_try under_handler
    under_finally opened under_with turn under_for squares walrus""".split(),  # noqa: SIM905 - a list of words
)
def test_a_name_that_the_module_binds_is_found_without_importing_it(module: str, name: str) -> None:
    """Fault: a way to bind a name that the search does not know, or a search that imports."""
    assert hook_fault(f"{module}:{name}") is None
    assert module not in sys.modules


@pytest.mark.parametrize("name", ["inner", "attribute", "element", "only_declared", "absent"])
def test_a_name_of_an_inner_scope_is_not_found(module: str, name: str) -> None:
    """Fault: a hook that is accepted here and fails in the worker."""
    fault = hook_fault(f"{module}:{name}")
    assert fault is not None
    assert f"{name!r} is not in {module}" in fault


def test_a_near_name_is_suggested(module: str) -> None:
    """Fault: a misspelt hook that costs a search through the module."""
    assert "did you mean 'function'?" in str(hook_fault(f"{module}:funktion"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_colon", "malformed"),
        ("a.b:", "malformed"),
        (":a", "malformed"),
        ("a..b:c", "malformed"),
        ("a:b.c", "malformed"),
        ("a:b:c", "malformed"),
        ("1a:b", "malformed"),
        ("hooked_absent:a", "there is no module 'hooked_absent'"),
        ("hooked_absent.inner:a", "No module named 'hooked_absent'"),
        ("hooked_folder:a", "is a folder"),
        ("hooked_broken:a", "cannot be read"),
        ("hooked_latin:a", "cannot be read"),
    ],
)
def test_a_hook_that_cannot_resolve_says_why(module: str, name: str, reason: str) -> None:
    """Fault: a broken hook accepted, or an exception in the place of a phrase."""
    assert reason in str(hook_fault(name))


def test_a_module_without_source_is_left_to_the_worker() -> None:
    """Fault: an extension module refused because its names cannot be read."""
    assert hook_fault("math:sqrt") is None


def test_a_module_whose_spec_is_lost_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: `find_spec` raises ValueError for such a module, as for a script's __main__."""
    monkeypatch.setattr(sys.modules["tests.config.samples"], "__spec__", None)
    assert "does not resolve" in str(hook_fault("tests.config.samples:load"))


def test_resolving_gives_the_object() -> None:
    """Fault: another object than the one named."""
    assert resolve_hook("tests.config.samples:load") is samples.load


@pytest.mark.parametrize(
    ("imported", "package", "installed"),
    [("nobody_has_this.inner", "nobody_has_this", "nobody_has_this"), ("PIL", "PIL", "pillow")],
)
def test_a_package_that_is_not_installed_is_named_with_how_to_install_it(
    imported: str, package: str, installed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: "No module named PIL", and nobody knows what to install."""
    (tmp_path / f"needs_{package}.py").write_text(f"import {imported}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "PIL", None)
    reason = f"hook 'needs_{package}:load' needs the package '{package}', which is not installed"
    with pytest.raises(ConfigError, match=f"{reason}; to install it: pip install {installed}$"):
        resolve_hook(f"needs_{package}:load")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tests.config.not_there:load", "does not resolve: No module named"),
        ("bad", "malformed hook 'bad'"),
        ("hooked_absent:a", "No module named"),
        ("tests.config.samples:gone", "is not in"),
    ],
)
def test_resolving_what_is_not_there_is_a_config_error(name: str, reason: str) -> None:
    """Fault: an ImportError or AttributeError that does not name the hook."""
    with pytest.raises(ConfigError, match=reason):
        resolve_hook(name)
