"""Hook names, "package.module:attribute": checked without importing the module, resolved where the object is needed.

`hook_fault` finds the module's file by `importlib.util.find_spec`, which imports the parents of the module (their
`__init__` are empty by rule of the house) but not the module, and looks for the attribute in the file's syntax tree. It
cannot see names that a module makes at run time; a hook is written down as a definition, an assignment or an import.
`resolve_hook` imports; workers, command lines and the reading of a pipeline call it. Knows nothing of what hooks do.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from omnistage.core.errors import ConfigError, did_you_mean

_HOOK = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_INSTALLED_AS = {"PIL": "pillow", "cv2": "opencv-python", "yaml": "PyYAML", "zmq": "pyzmq"}
"""Packages that are imported under another name than they are installed by."""
ACCEPTED = '"package.module:attribute"'


def hook_fault(name: str) -> str | None:
    """What is wrong with a hook name, in one phrase, or None."""
    if not _HOOK.fullmatch(name):
        return f"malformed hook {name!r}; accepted: {ACCEPTED}"
    module, _, attribute = name.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        return f"hook {name!r} does not resolve: {error}"
    if spec is None:
        return f"hook {name!r} does not resolve: there is no module {module!r}"
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None if spec.loader is not None else f"hook {name!r} does not resolve: {module!r} is a folder"
    try:
        names = _names_in(Path(spec.origin))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return f"hook {name!r} does not resolve: {spec.origin} cannot be read: {error}"
    if attribute in names:
        return None
    return f"hook {name!r} does not resolve: {attribute!r} is not in {module}{did_you_mean(attribute, names)}"


def package_folder(name: str) -> Path | None:
    """Where an installed package lies; its parents are imported, itself not. None where there is none, or where it is no folder."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return next((Path(place) for place in places if Path(place).is_dir()), None)


def resolve_hook(name: str) -> object:
    """Imports the hook's module and hands out the object. Raises ConfigError with the hook's name and the reason."""
    if not _HOOK.fullmatch(name):
        raise ConfigError(f"malformed hook {name!r}; accepted: {ACCEPTED}")
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(_absence(name, error)) from error
    except ImportError as error:
        raise ConfigError(f"hook {name!r} does not resolve: {error}") from error
    try:
        found: object = getattr(module, attribute)
    except AttributeError:
        raise ConfigError(f"hook {name!r} does not resolve: {attribute!r} is not in {module_name}") from None
    return found


def _absence(name: str, error: ModuleNotFoundError) -> str:
    """A module of the hook's own that is absent is a wrong name; another's package is one to install."""
    package = (error.name or "").partition(".")[0]
    if package in ("", name.partition(".")[0].partition(":")[0]):
        return f"hook {name!r} does not resolve: {error}"
    return (
        f"hook {name!r} needs the package {package!r}, which is not installed; "
        f"to install it: pip install {_INSTALLED_AS.get(package, package)}"
    )


@functools.lru_cache(maxsize=256)
def _names_in(path: Path) -> frozenset[str]:
    return frozenset(_bound(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))))


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that a module binds outside its functions and classes, those inside `if`, `try` and `with` included."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.comprehension() | ast.Lambda() | ast.AnnAssign(value=None):
                pass  # names of an inner scope, and one that is only declared
            case _:
                yield from _bound(child)
