"""Random pipelines, stages, callers and faults for the simulator."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from omnistage.orchestrator.plan import EdgePlan, Limits, OrchestratorConfig, StagePlan
from tests.orchestrator.fake_stage import Faults, StageModel
from tests.orchestrator.simulator import Caller, Scenario

MODALITIES = ("text", "audio", "image", "video")
FAULTS = ("fail", "end_early", "drop", "duplicate", "duplicate_fresh", "late")


@st.composite
def pipelines(draw: st.DrawFn, limits: Limits) -> OrchestratorConfig:
    """Up to six stages; every one but the first may have any earlier ones as sources; sinks are final outputs."""
    count = draw(st.integers(1, 6))
    edges = []
    for target in range(1, count):
        sources = draw(st.sets(st.integers(0, target - 1), max_size=3))
        edges += [
            EdgePlan(source, target, streaming=draw(st.integers(0, 3)) > 0, window=draw(st.integers(1, 3)))
            for source in sorted(sources)
        ]
    inner = {edge.source for edge in edges}
    processes = [draw(st.integers(0, stage_id)) for stage_id in range(count)]
    stages = tuple(
        StagePlan(
            stage_id=stage_id,
            name=f"s{stage_id}",
            process=f"p{processes[stage_id]}",
            max_num_seqs=draw(st.integers(1, 2)),
            lookahead=draw(st.integers(0, 1)),
            paused_per_place=draw(st.integers(0, 2)),
            final_output_type=(
                draw(st.sampled_from(MODALITIES)) if stage_id not in inner or draw(st.booleans()) else None
            ),
            cancel_timeout_s=5_000.0,
        )
        for stage_id in range(count)
    )
    replicas = {stage.process: draw(st.integers(1, 2)) for stage in stages}
    return OrchestratorConfig(stages, tuple(edges), replicas, limits)


def models(draw: st.DrawFn, config: OrchestratorConfig) -> dict[int, StageModel]:
    """Fake stages to a pipeline; the KV blocks suffice for one request, as they must."""
    made = {}
    for stage in config.stages:
        items = draw(st.integers(0, 4))
        made[stage.stage_id] = StageModel(
            stage_id=stage.stage_id,
            sources=tuple(edge.source for edge in config.edges if edge.target == stage.stage_id),
            gathered=tuple(
                edge.target for edge in config.edges if edge.source == stage.stage_id and not edge.streaming
            ),
            items=items,
            item_nbytes=draw(st.sampled_from((30, 60, 500))),
            period=draw(st.sampled_from((1.0, 1.0, 100.0))),
            slots=stage.max_num_seqs,
            kv_blocks=1 + items // 2 + draw(st.integers(0, 1)),
            window=draw(st.integers(1, 2)),
            early=draw(st.integers(0, 4)) == 0,
            bare_end=draw(st.booleans()),
            shared=draw(st.booleans()),
        )
    return made


def callers(draw: st.DrawFn, config: OrchestratorConfig, *, trouble: bool) -> tuple[Caller, ...]:
    made = sorted({stage.final_output_type for stage in config.stages if stage.final_output_type})
    found = []
    for number in range(draw(st.integers(1 if trouble else 3, 6))):
        keys: dict[str, Any] = {"takes_s": draw(st.sampled_from((0.1, 5.0)))}
        if trouble:
            keys["timeout_s"] = draw(st.sampled_from((100_000.0, 100_000.0, 100_000.0, 30.0)))
            keys["takes_s"] = draw(st.sampled_from((0.1, 0.1, 50.0, None)))
            keys["aborts"] = draw(st.sampled_from((None, None, None, None, 0.0, 3.0, 40.0)))
            keys["group_id"] = draw(st.sampled_from((None, None, None, "g")))
        found.append(
            Caller(
                request_id=f"r{number}",
                wants=tuple(sorted(draw(st.sets(st.sampled_from(made), min_size=1)))),
                arrives=draw(st.sampled_from((0.0, 1.0, 5.0))),
                priority=draw(st.integers(0, 1)),
                stream=draw(st.booleans()),
                **keys,
            )
        )
    return tuple(found)


@st.composite
def peaceful(draw: st.DrawFn) -> Scenario:
    """Nothing goes wrong; everything is as tight as it may be."""
    limits = Limits(request_timeout_s=1e6, client_window_nbytes=100, client_window_items=2, client_stall_s=1e5)
    config = draw(pipelines(limits))
    return Scenario(
        config=config,
        models=models(draw, config),
        callers=callers(draw, config, trouble=False),
        seed=draw(st.integers(0, 999)),
        arena_blocks=draw(st.integers(1, 3)),
    )


@st.composite
def troubled(draw: st.DrawFn) -> Scenario:
    """Everything that can go wrong may go wrong."""
    limits = Limits(
        request_timeout_s=1e6,
        client_window_nbytes=100,
        client_window_items=2,
        client_stall_s=draw(st.sampled_from((20.0, 1e5))),
        max_queued_requests=draw(st.sampled_from((2, 100))),
        strikes=draw(st.sampled_from((2, 5))),
    )
    config = draw(pipelines(limits))
    calling = callers(draw, config, trouble=True)
    names = st.sampled_from([caller.request_id for caller in calling])
    replicas = st.sampled_from([(process, 0) for process in config.processes])
    faults: dict[int, Faults] = {}
    for _ in range(draw(st.integers(0, 6))):
        stage = draw(st.sampled_from(config.stages)).stage_id
        spoiled: set[str] = getattr(faults.setdefault(stage, Faults()), draw(st.sampled_from(FAULTS)))
        spoiled.add(draw(names))
    times = st.sampled_from((0.5, 3.0, 8.0, 30.0, 130.0))
    return Scenario(
        config=config,
        models=models(draw, config),
        callers=calling,
        seed=draw(st.integers(0, 999)),
        arena_blocks=draw(st.integers(1, 3)),
        faults=faults,
        deaths=tuple((draw(times), *draw(replicas)) for _ in range(draw(st.integers(0, 3)))),
        stuck=tuple(draw(st.lists(replicas, max_size=1))),
        pauses=tuple((draw(times), *draw(replicas)) for _ in range(draw(st.integers(0, 1)))),
        calls=tuple(draw(st.lists(times, max_size=2))),
        shutdown=draw(st.sampled_from((None, None, None, 20.0))),
    )
