"""Break the code in one place at a time and see that a named test notices.

Each `tests/mutants/<area>/<name>.toml` describes one fault:

    file  = "orchestrator/machine.py"     # below src/omnistage
    find  = "text that stands exactly once in that file"
    replace = "what stands there instead"
    tests = ["tests/orchestrator/test_machine.py::test_x"]   # node ids or paths
    fault = "What goes wrong, in one sentence."

The named tests first run once on the source as it is: they must pass there. Then each mutant gets a copy of `src` and
runs only its own tests, within `--limit-s` seconds (a mutant that never ends counts as killed by the time limit). The
exit status is 0 if every mutant is killed, 1 if one survives, 2 if a description is wrong. The working tree is not
touched.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AT_A_TIME = 2
LIMIT_S = 120.0
FIELDS = {"file": str, "find": str, "replace": str, "tests": list, "fault": str}
TESTS_FAILED = 1  # pytest's exit status when tests ran and some failed; other non-zero ones mean they did not run


class MutantError(Exception):
    """A description that cannot be applied, or tests that do not run."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault, where it goes, and the tests that are to notice it."""

    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    fault: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant: the test that killed it, "" if it survived, or the error that kept it from running."""

    mutant: Mutant
    killer: str = ""
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"ERROR     {self.mutant.name}: {self.error}"
        if not self.killer:
            return f"SURVIVED  {self.mutant.name}: {self.mutant.fault}"
        return f"killed    {self.mutant.name}: {self.mutant.fault} [{self.killer}]"


def read_mutant(path: Path, folder: Path) -> Mutant:
    """Read one description. Raises MutantError for a missing, unknown or mistyped field."""
    name = path.relative_to(folder).with_suffix("").as_posix()
    try:
        fields = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise MutantError(f"{name}: not TOML: {error}") from error
    wrong = sorted(fields.keys() ^ FIELDS.keys())
    wrong += [key for key, kind in FIELDS.items() if key in fields and not isinstance(fields[key], kind)]
    if wrong or not fields["tests"]:
        raise MutantError(f"{name}: look at {', '.join(wrong) or 'tests'}; accepted are {', '.join(FIELDS)}")
    return Mutant(name=name, **{**fields, "tests": tuple(fields["tests"])})


def read_mutants(folder: Path, only: list[str]) -> list[Mutant]:
    """All mutants of a folder, by name; with `only`, those whose name or area is named there."""
    mutants = [read_mutant(path, folder) for path in sorted(folder.rglob("*.toml"))]
    if not only:
        return mutants
    chosen = [mutant for mutant in mutants if set(only) & {mutant.name, *mutant.name.split("/")}]
    if not chosen:
        raise MutantError(f"no mutant is named {' or '.join(only)}; there are {[mutant.name for mutant in mutants]}")
    return chosen


def mutated(text: str, mutant: Mutant) -> str:
    """The file's text with the one change. Raises MutantError unless `find` stands there exactly once."""
    count = text.count(mutant.find)
    if count != 1:
        raise MutantError(f"{mutant.file} holds the text to find {count} times, not once: {mutant.find!r}")
    return text.replace(mutant.find, mutant.replace)


def run_tests(root: Path, source: Path, tests: tuple[str, ...], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run tests of `root` against the package in `source`, up to the first failure. Raises TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="mutant-state-") as state:
        environment = {
            **os.environ,
            "PYTHONPATH": str(source),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": state,
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rf", "--no-header", "-p", "no:cacheprovider", *tests]
        return subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )


def killer_in(output: str) -> str:
    """The first failed test of pytest's short summary."""
    found = re.search(r"^FAILED (\S+)", output, flags=re.MULTILINE)
    return found[1] if found else ""


def last_lines(result: subprocess.CompletedProcess[str]) -> str:
    """The end of what pytest said, on one line."""
    return " / ".join((result.stdout + result.stderr).strip().splitlines()[-3:])


def judge(root: Path, mutant: Mutant, limit_s: float) -> Verdict:
    """Apply one mutant to a copy of the source and run its tests there."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(root / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        target = source / "omnistage" / mutant.file
        if not target.is_file():
            return Verdict(mutant, error=f"no file {mutant.file} below src/omnistage")
        try:
            target.write_text(mutated(target.read_text(), mutant))
            result = run_tests(root, source, mutant.tests, limit_s)
        except MutantError as error:
            return Verdict(mutant, error=str(error))
        except subprocess.TimeoutExpired:
            return Verdict(mutant, killer=f"time limit of {limit_s:g} s")
    if result.returncode == 0:
        return Verdict(mutant)
    killer = killer_in(result.stdout)
    if result.returncode == TESTS_FAILED and killer:
        return Verdict(mutant, killer=killer)
    return Verdict(mutant, error=f"the tests did not run: {last_lines(result)}")


def check_tests_pass(root: Path, mutants: list[Mutant], limit_s: float) -> None:
    """Raise MutantError unless all named tests pass on the source as it is: a red test kills everything."""
    tests = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
    try:
        result = run_tests(root, root / "src", tests, limit_s * max(1, len(mutants)))
    except subprocess.TimeoutExpired as error:
        raise MutantError(f"the named tests do not end without a mutant within {error.timeout:g} s") from error
    if result.returncode != 0:
        raise MutantError(f"the named tests fail without any mutant: {last_lines(result)}")


def judge_all(root: Path, mutants: list[Mutant], limit_s: float) -> Iterator[Verdict]:
    """Verdicts in the order of the mutants, a few at a time."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield from pool.map(lambda mutant: judge(root, mutant, limit_s), mutants)


def main(arguments: list[str] | None = None, *, root: Path = ROOT) -> int:
    """Run the mutants and print one line each. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Break the code in one place at a time; a named test must notice.")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="names (area/name, or name) or areas")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help=f"seconds for one mutant ({LIMIT_S:g})")
    options = parser.parse_args(arguments)
    try:
        mutants = read_mutants(root / "tests" / "mutants", options.only)
        if mutants:
            check_tests_pass(root, mutants, options.limit_s)
    except MutantError as error:
        print(f"ERROR     {error}")
        return 2
    verdicts = []
    for verdict in judge_all(root, mutants, options.limit_s):
        print(verdict, flush=True)
        verdicts.append(verdict)
    killed, wrong = sum(bool(v.killer) for v in verdicts), sum(bool(v.error) for v in verdicts)
    print(f"{killed} of {len(verdicts)} mutants killed, {len(verdicts) - killed - wrong} survived, {wrong} in error")
    return 2 if wrong else int(killed < len(verdicts))


if __name__ == "__main__":
    sys.exit(main())
