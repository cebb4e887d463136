"""The library diffusers, at the one border where it is imported: families that draw with its parts come through here.

It is optional (the extra `diffusers`), and importing it takes seconds and torch: nothing does so before it is asked for a class, in
the worker that loads a model. Errors are ConfigErrors of one line, which say what to install.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from omnistage.core.errors import ConfigError, did_you_mean

_LIBRARY = "diffusers"
_INSTALL = f"pip install 'omnistage[{_LIBRARY}]'"


def diffusers_class(name: str) -> Any:
    """The class of the library (a pipeline, a transformer, an autoencoder, a scheduler), which is Any to type checkers. Raises
    ConfigError where the library is not installed, does not know the class, or lacks packages that the class needs."""
    library = _imported(lambda: importlib.import_module(_LIBRARY))
    found = _imported(lambda: getattr(library, name, None))  # which imports the module that the class is in
    if not isinstance(found, type):
        near = did_you_mean(name, dir(library))
        hint = near if near.startswith("; did") else ""
        raise ConfigError(f"{_LIBRARY} {library.__version__} has no class {name!r}{hint}", field=_LIBRARY)
    needs = getattr(found, "_backends", None)  # only what stands in for a class that cannot be imported has it
    if needs is not None:
        missing = f"packages that are not all here: {', '.join(needs)}"
        raise ConfigError(f"{name} of {_LIBRARY} needs {missing}", field=_LIBRARY)
    return found


def _imported(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except (ImportError, RuntimeError) as error:  # the library makes the latter of the former
        if isinstance(error, ModuleNotFoundError) and error.name == _LIBRARY:
            fault = f"this model needs the package {_LIBRARY}"
        else:
            fault = f"{_LIBRARY} cannot be imported ({' '.join(str(error).split())})"
        raise ConfigError(f"{fault}; {_INSTALL} brings what fits", field=_LIBRARY) from error
