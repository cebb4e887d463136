"""What is kept and told of one request."""

from __future__ import annotations

from omnistage.core.params import SamplingParams
from omnistage.modeling.tensors import TorchSource
from omnistage.stages.ar.choice import ChoiceState, SampledToken
from omnistage.stages.ar.plan import SequenceKey
from omnistage.stages.ar.requests import RequestState, StepReport
from omnistage.stages.ar.sequence import SequenceState
from tests.tiny.engines import stage_request


def state(params: SamplingParams, *, choices: int = 1) -> RequestState:
    sequences = [SequenceState(SequenceKey("r", index), (0, 0, index), [5, 6], 9) for index in range(choices)]
    made = RequestState(stage_request("r", [5, 6], params), params, sequences)
    made.choices = [
        ChoiceState(index, params, eos_token_ids=frozenset(), max_tokens=1, decoder=None) for index in range(choices)
    ]
    return made


def test_a_draw_is_placed_by_seed_position_and_choice() -> None:
    """Fault: positions counted from the prompt, so that a longer prompt changes the draws."""
    made = state(SamplingParams(seed=4), choices=2)
    made.sequences[1].tokens += [7, 8]
    row = made.sample_row(1)
    assert (row.seed, row.position, row.stream) == (4, 2, (1, 0))
    assert (list(row.seen), list(row.output)) == ([], [])


def test_history_is_carried_only_where_penalties_need_it() -> None:
    """Fault: fillers of an embedded prompt are punished as if they had been read; history is copied for nobody."""
    made = state(SamplingParams(repetition_penalty=1.5))
    assert list(made.sample_row(0).seen) == [5, 6]
    made.sequences[0].tokens += [7, 5, 7]
    assert (list(made.sample_row(0).seen), made.sample_row(0).output) == ([5, 6, 7], ())
    embedded = state(SamplingParams(repetition_penalty=1.5, presence_penalty=0.5))
    embedded.has_embeds = True
    embedded.sequences[0].tokens += [7]
    assert (list(embedded.sample_row(0).seen), embedded.sample_row(0).output) == ([7], [7])


def test_without_a_seed_the_name_decides() -> None:
    """Fault: a replay of an unseeded request draws other tokens."""
    assert state(SamplingParams()).seed == state(SamplingParams()).seed
    assert 0 <= state(SamplingParams()).seed < 2**64


def test_a_request_is_done_with_its_last_choice() -> None:
    """Fault: the first choice ends the request; one whose prompt is still open counts as done."""
    made = state(SamplingParams(n=2), choices=2)
    made.choices[0].push(SampledToken(5))
    assert not made.is_done
    made.choices[1].push(SampledToken(5))
    assert made.is_done
    made.choices = []
    assert not made.is_done


def test_a_report_with_nothing_to_say_says_nothing() -> None:
    """Fault: an empty output for every request in every step."""
    assert StepReport().output("r", None) is None
    consumed = StepReport(consumed=((0, 3),)).output("r", None)
    assert consumed is not None
    assert (consumed.capture, consumed.consumed) == (None, ((0, 3),))


def test_tensors_carry_their_positions() -> None:
    """Fault: rows without the places they belong to."""
    import torch

    report = StepReport(tensors={"hidden_1": TorchSource(torch.ones(2, 3))}, positions=[4, 6])
    output = report.output("r", None)
    assert output is not None
    assert output.capture is not None
    assert dict(output.capture.metadata) == {"positions": [4, 6]}
