"""The public face of omnistage: the names a user imports, and nothing else.

Importing this package costs milliseconds: a public name loads its module on first use, so neither a server process
nor a command line that only prints its help pays for an engine. Nothing here knows how a name is implemented.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnistage.core.errors import OmniError
    from omnistage.core.output import OmniRequestOutput
    from omnistage.core.params import DiffusionParams, GenerationParams, SamplingParams
    from omnistage.core.payload import MultimodalPayload
    from omnistage.engine.async_omni import AsyncOmni
    from omnistage.engine.omni import Omni

__version__ = "0.1.0"

__all__ = [
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

_HOME_OF = {
    "AsyncOmni": "omnistage.engine.async_omni",
    "DiffusionParams": "omnistage.core.params",
    "GenerationParams": "omnistage.core.params",
    "MultimodalPayload": "omnistage.core.payload",
    "Omni": "omnistage.engine.omni",
    "OmniError": "omnistage.core.errors",
    "OmniRequestOutput": "omnistage.core.output",
    "SamplingParams": "omnistage.core.params",
}


def __getattr__(name: str) -> object:
    """Load a public name on first use and keep it, so that the next look-up is an ordinary one."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'omnistage' has no attribute {name!r}; it has {', '.join(__all__)}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
