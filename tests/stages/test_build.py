"""From a stage's configuration to its host. Faults pinned: torch is loaded for a stage that needs none; a select hook that is
named is not used."""

import subprocess
import sys
from pathlib import Path

from omnistage.config.stage import OutputEdge
from omnistage.stages.build import build_host, load_selects, modules_of
from omnistage.stages.host import StageHost
from tests.fakes import echo_config, request_of
from tests.stages.fakes import TightConnector


def test_a_generation_stage_becomes_a_host() -> None:
    """Fault: the kind is not found by its configuration."""
    assert isinstance(build_host(echo_config(), {"shm": TightConnector()}), StageHost)


def test_select_hooks_are_loaded_by_target() -> None:
    """Fault: an edge sends everything although it names what to pick."""
    outputs = (OutputEdge(target=1, select="tests.fakes:request_of"), OutputEdge(target=2))
    selects: dict[int, object] = dict(load_selects(echo_config(outputs=outputs)))
    assert selects == {1: request_of}


def test_the_modules_of_a_stage_are_those_of_its_hooks_and_of_its_kind() -> None:
    """Fault: a module that every restart imports again, because nobody knew that it would be needed."""
    outputs = (OutputEdge(target=1, select="picks.what:select"), OutputEdge(target=2))
    config = echo_config(outputs=outputs, loader="loads.it:load", processor="reads.it:load")
    kind = "omnistage.stages.generation.build"
    assert modules_of(config) == [kind, "loads.it", "reads.it", "picks.what"]


def test_a_generation_stage_without_torch_loads_none() -> None:
    """Fault: every worker pays seconds and memory for a library that its stages do not use."""
    program = (
        "import sys\n"
        "from omnistage.stages.build import build_engine\n"
        "from tests.fakes import echo_config\n"
        "build_engine(echo_config())\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], timeout=60, check=False)
    assert result.returncode == 0
