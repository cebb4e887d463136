"""The invariants of the machine, on random pipelines of fake stages with random faults.

OMNISTAGE_TEST_EXAMPLES multiplies the number of examples and looks for new ones; without it the runs are always the same.
"""

import copy
import os

from hypothesis import HealthCheck, given, settings

from tests.orchestrator.scenarios import peaceful, troubled
from tests.orchestrator.simulator import Scenario, World, expect_all_ended, expect_replay_equal

DEPTH = int(os.environ.get("OMNISTAGE_TEST_EXAMPLES", "0"))
EXAMPLES = 120

bounded = settings(
    max_examples=EXAMPLES * max(1, DEPTH),
    derandomize=DEPTH == 0,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@bounded
@given(peaceful())
def test_every_request_finishes_if_every_stage_answers(scenario: Scenario) -> None:
    """Fault: a pipeline locks up under windows of one, few slots, little memory, slow targets or priorities."""
    world = World(copy.deepcopy(scenario)).run()
    expect_all_ended(world)
    world.checks.expect_finished()


@bounded
@given(troubled())
def test_whatever_fails_every_request_ends_once_and_nothing_is_left(scenario: Scenario) -> None:
    """Fault: a failure, death, abort, stall or timeout leaves a request open, a slot taken or a payload unreleased."""
    world = World(copy.deepcopy(scenario)).run()
    expect_all_ended(world)
    expect_replay_equal(world)
