"""The sampler against exact probabilities, against transformers' processors, and against its own rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as reference

from omnistage.core.params import SamplingParams
from omnistage.modeling import drawing, sampling
from omnistage.modeling.sampling import Sampled, SampleRow, SeenTokens, sample

VOCAB = 400
DRAWS = 8_000


def some_logits(rows: int = 1, vocab: int = VOCAB, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def exact(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The distribution that transformers' own processors leave, in their order."""
    scores = logits[None].double() / params.temperature
    ids = torch.zeros(1, 1, dtype=torch.long)
    if params.top_k > 0:
        scores = reference.TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = reference.TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p > 0:
        scores = reference.MinPLogitsWarper(params.min_p)(ids, scores)
    return scores.softmax(-1)[0]


def drawn_shares(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """How often each token comes, over DRAWS positions of one seed."""
    rows = [SampleRow(params, seed=3, position=position) for position in range(DRAWS)]
    counts = torch.zeros(len(logits))
    for start in range(0, DRAWS, 2000):
        some = rows[start : start + 2000]
        found = sample(logits.repeat(len(some), 1), some)
        counts += torch.bincount(torch.tensor([one.token for one in found]), minlength=len(logits))
    return counts / DRAWS


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 10},
        {"top_p": 0.7},
        {"top_p": 0.999},
        {"min_p": 0.05},
        {"top_k": 40, "top_p": 0.8, "min_p": 0.02, "temperature": 1.3},
        {"top_k": VOCAB + 5, "top_p": 0.9},
    ],
    ids=str,
)
def test_tokens_come_as_often_as_they_should(filters: dict[str, Any]) -> None:
    """Fault: a filter that keeps one token too many or too few, a wrong order of filters, a skewed draw."""
    params = SamplingParams(**filters)
    logits = some_logits()[0]
    probabilities = exact(logits, params)
    shares = drawn_shares(logits, params)
    assert shares[probabilities == 0].sum() == 0
    assert (shares - probabilities).abs().max() < 4 * (0.25 / DRAWS) ** 0.5


def test_a_flat_distribution_has_a_wide_nucleus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the nucleus is cut at the number of candidates that are looked at first."""
    monkeypatch.setattr(drawing, "NUCLEUS_CANDIDATES", 16)
    params = SamplingParams(top_p=0.9)
    logits = some_logits(spread=0.1)[0]
    shares = drawn_shares(logits, params)
    probabilities = exact(logits, params)
    assert shares[probabilities == 0].sum() == 0
    assert (shares > 0).sum() > 300


def one(logits: torch.Tensor, **named: Any) -> Sampled:
    params = SamplingParams(**{"temperature": 0.0, **named.pop("params", {})})
    return sample(logits.clone()[None], [SampleRow(params, seed=0, position=0, **named)])[0]


def test_greedy_takes_the_best() -> None:
    """Fault: temperature 0 divides by zero, or draws."""
    logits = some_logits()[0]
    assert one(logits).token == int(logits.argmax())


def test_a_tiny_temperature_is_almost_greedy() -> None:
    """Fault: logits divided by a tiny temperature overflow to infinity and come out as nothing."""
    logits = some_logits(spread=50.0)[0]
    assert one(logits, params={"temperature": 1e-30}).token == int(logits.argmax())


def test_penalties_and_bias_are_those_of_their_definitions() -> None:
    """Fault: presence counted per occurrence, frequency per token, repetition on the output alone, a sign wrong."""
    logits = torch.tensor([2.0, -1.0, 0.5, 1.0, 0.0])
    params = SamplingParams(
        repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5, logit_bias={4: 3.0, 0: 1.0}
    )
    adjusted = logits.clone()[None]
    sampling._adjust(adjusted, [SampleRow(params, 0, 0, seen=[1, 0, 2], output=[2, 2])])
    # prompt and output: 2 / 2, -1 * 2, 0.5 / 2; output alone: minus 0.25 and twice 0.5
    assert adjusted[0].tolist() == pytest.approx([1.0 + 1.0, -2.0, 0.25 - 0.25 - 1.0, 1.0, 3.0])


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    """Fault: a token seen twice is punished twice."""
    logits, prompt, output = some_logits(), [3, 4, 4, 9], [4, 7]
    params = SamplingParams(repetition_penalty=1.3)
    wanted = reference.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output]), logits.clone())
    sampling._adjust(logits, [SampleRow(params, 0, 0, seen=SeenTokens().of(prompt + output))])
    assert torch.equal(logits, wanted)


def test_tokens_are_seen_once() -> None:
    """Fault: a token that came again counts twice; what was not to be counted is; new tokens are not noticed."""
    seen, tokens = SeenTokens(start=2), [1, 2, 9, 3, 9]
    assert list(seen.of(tokens)) == [9, 3]
    assert list(seen.of([*tokens, 1, 3])) == [9, 3, 1]
    assert list(SeenTokens().of(tokens)) == [1, 2, 9, 3]


def test_forbidden_tokens_do_not_come() -> None:
    """Fault: the end of text comes before min_tokens."""
    logits = some_logits()[0]
    best = logits.argsort(descending=True).tolist()
    assert one(logits, forbidden=best[:2]).token == best[2]


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    """Fault: log probabilities after temperature, bias or filters; the chosen token's taken from the wrong row."""
    logits = some_logits(2)
    rows = [
        SampleRow(SamplingParams(temperature=0.0), 0, 0),
        SampleRow(SamplingParams(temperature=2.0, top_k=3, logit_bias={7: 20.0}, logprobs=4), 0, 0),
    ]
    wanted = logits[1].log_softmax(-1)
    plain, asked = sample(logits.clone(), rows)
    assert (plain.logprob, plain.top) == (None, [])
    assert asked.token == 7
    assert asked.logprob == pytest.approx(float(wanted[7]))
    values, ids = wanted.topk(4)
    assert [token for token, _ in asked.top] == ids.tolist()
    assert [value for _, value in asked.top] == pytest.approx(values.tolist())


def test_zero_logprobs_tell_of_the_chosen_token_only() -> None:
    """Fault: an explicit 0 is taken for None."""
    found = one(some_logits()[0], params={"logprobs": 0})
    assert found.logprob is not None
    assert found.top == []


def test_logits_that_are_not_finite_give_no_token() -> None:
    """Fault: a row of NaN gives token 0, or spoils its neighbours."""
    logits = some_logits(3)
    logits[1] = float("nan")
    found = sample(logits.clone(), [SampleRow(SamplingParams(), 1, 0)] * 3)
    assert found[1].token is None
    assert found[0].token is not None
    assert found[2].token is not None


some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 60, 1000]),
    top_p=st.sampled_from([0.1, 0.6, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    logprobs=st.sampled_from([None, 2]),
)


@settings(max_examples=40, deadline=None)
@given(params=st.lists(some_params, min_size=2, max_size=12), seed=st.integers(0, 2**64 - 1), ties=st.booleans())
def test_a_row_does_not_depend_on_its_neighbours(params: list[SamplingParams], seed: int, ties: bool) -> None:
    """Fault: sums, sorts or thresholds that change with the width or the height of the batch; ties broken by the batch."""
    logits = some_logits(len(params), seed=seed % 1000)
    if ties:
        logits = logits.round()  # what bfloat16 does
    rows = [
        SampleRow(one, (seed + index) % 2**64, position=index, seen=[1, 2, 3], output=[3, 3])
        for index, one in enumerate(params)
    ]
    together = sample(logits.clone(), rows)
    alone = [sample(logits[index : index + 1].clone(), [row])[0] for index, row in enumerate(rows)]
    assert [(one.token, one.logprob, one.top) for one in together] == [
        (one.token, one.logprob, one.top) for one in alone
    ]


def test_a_row_with_few_candidates_beside_one_with_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the filling of a narrow row is taken for the end of its distribution."""
    monkeypatch.setattr(drawing, "NUCLEUS_CANDIDATES", 4)
    logits = torch.cat([some_logits(spread=0.5), torch.zeros(1, VOCAB)])  # equal values are candidates all together
    params = SamplingParams(top_p=0.9)
    for position in range(30):
        rows = [SampleRow(params, 1, position), SampleRow(params, 2, position)]
        assert sample(logits.clone(), rows)[0].token == sample(logits[:1].clone(), rows[:1])[0].token


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.9, 1 - 1e-12])
def test_the_nucleus_is_what_sorting_tokens_would_give(ties: bool, top_p: float) -> None:
    """Fault: one token too many at the edge, or all of those that are equal to it."""
    logits = some_logits()[0].double().numpy()
    weights = np.exp(np.round(logits) if ties else logits)
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    wanted = set(order[before < top_p * weights.sum() * (1 - 1e-13)].tolist()) | {int(order[0])}
    assert set(np.flatnonzero(drawing._nucleus(weights, top_p)).tolist()) == wanted


def test_among_few_and_among_all_agree_on_what_may_come() -> None:
    """Fault: the quick form keeps other tokens than the plain one."""
    scaled = some_logits()[0] - some_logits()[0].max()
    weights = np.exp(np.sort(scaled.double().numpy())[::-1])[None]
    settings = np.zeros(400, drawing.DRAW_SETTINGS)
    settings["temperature"], settings["top_p"], settings["min_p"] = 1.0, 0.6, 0.01
    settings["chance"] = np.linspace(0, 0.9999, 400)
    kept = drawing._filter(weights, weights.sum(axis=1), settings[:1])
    few = {drawing._draw_among_few(scaled[None], row, np.array([256]))[0] for row in np.split(settings, 400)}
    plain = {drawing._draw_among_all(scaled, row) for row in settings}
    best = set(scaled.argsort(descending=True)[: int(kept.sum())].tolist())
    assert few <= best
    assert plain <= best
