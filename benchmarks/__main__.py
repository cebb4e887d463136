"""`python -m benchmarks [--all] [--only NAME ...]`: runs, prints a table, writes out/bench.json."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib import metadata
from pathlib import Path

from benchmarks import (
    added,
    ar,
    ar_parts,
    diffusion,
    egress,
    handoff,
    hops,
    machine,
    omni,
    omni_codec,
    omni_gap,
    omni_memory,
    serving,
    serving_vllm,
    sse,
    start,
)
from benchmarks.rows import Benchmark, Row, Skipped

BENCHMARKS: tuple[Benchmark, ...] = (
    *start.BENCHMARKS,
    *machine.BENCHMARKS,
    *handoff.BENCHMARKS,
    *hops.BENCHMARKS,
    *added.BENCHMARKS,
    *sse.BENCHMARKS,
    *egress.BENCHMARKS,
    *diffusion.BENCHMARKS,
    *ar.BENCHMARKS,
    *ar_parts.BENCHMARKS,
    *omni_codec.BENCHMARKS,
    *serving.BENCHMARKS,
    *serving_vllm.BENCHMARKS,
    *omni.BENCHMARKS,
    *omni_gap.BENCHMARKS,
    *omni_memory.BENCHMARKS,
)
OUT = Path("out/bench.json")


def chosen(only: list[str], every: bool) -> list[Benchmark]:
    known = {name for benchmark in BENCHMARKS for name in benchmark.names}
    if unknown := [name for name in only if name not in known]:
        sys.exit(f"unknown rows: {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
    if only:
        return [benchmark for benchmark in BENCHMARKS if set(benchmark.names) & set(only)]
    return [benchmark for benchmark in BENCHMARKS if benchmark.quick or every]


def show(row: Row) -> None:
    peer = "-" if row.peer is None else f"{row.peer:.3g}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    mark = "reached" if row.reached else "MISSED"
    print(
        f"{row.name:32} {row.ours:>10.3f} {row.unit:12} {peer:>9} {ratio:>7}  {row.goal:8} {mark:8} {row.loadavg:.2f}"
    )
    cpu = "".join(
        f"; CPU of {side} {seconds:.2f} s"
        for side, seconds in (("ours", row.cpu_s_ours), ("the peer", row.cpu_s_peer))
        if seconds is not None
    )
    print(f"{'':32} {row.workload}{cpu}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("--all", action="store_true", help="the slow ones too")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    arguments = parser.parse_args()
    print(f"{'row':32} {'ours':>10} {'unit':12} {'peer':>9} {'ratio':>7}  {'goal':8} {'':8} load")
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for benchmark in chosen(arguments.only, arguments.all):
        match benchmark.run():
            case Skipped(reason):
                skipped |= dict.fromkeys(benchmark.names, reason)
                for name in benchmark.names:
                    print(f"{name:32} skipped: {reason}", flush=True)
            case found:
                rows += found
                for row in found:
                    show(row)
    versions = {name: metadata.version(name) for name in ("omnistage", "torch", "transformers", "onnxruntime")}
    OUT.parent.mkdir(exist_ok=True)
    report = {
        "versions": versions,
        "python": platform.python_version(),
        "rows": [row.as_dict() for row in rows],
        "skipped": skipped,
    }
    OUT.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
