"""The shape of the source tree: budgets, bans and places, read from syntax trees without importing anything.

What ruff, mypy and import-linter say is not repeated here. A budget is raised only with a reason in the same commit;
it is not met by writing lines closer together.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "omnistage"
TESTS = ROOT / "tests"
MODELS = PACKAGE / "models"

FILE_LINES = 400
MODEL_FILE_LINES = 800
FUNCTION_LINES = 60
FUNCTION_LINES_95TH_PERCENTILE = 45
COMPLEXITY = 10

BANNED_CALLS = {"hasattr", "setattr", "eval", "exec"}
MAY_CALL_BANNED = {"modeling/loader.py"}
ENVIRONMENT_READS = {"environ", "environb", "getenv", "getenvb"}
MAY_READ_ENVIRONMENT = {"config/env.py"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError|stub|placeholder)\b")
BROAD = {"Exception", "BaseException"}

Function = ast.FunctionDef | ast.AsyncFunctionDef

SOURCES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(), filename=name) for name, path in SOURCES.items()}
TEST_TREES = {
    path.relative_to(TESTS).as_posix(): ast.parse(path.read_text(), filename=str(path))
    for path in sorted(TESTS.rglob("*.py"))
}


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function of a tree, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def declares_only(function: Function) -> bool:
    """True for a protocol's method: a docstring, an ellipsis, and nothing that runs."""
    return all(isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in function.body)


def line_count(function: Function) -> int:
    """Lines from `def` (decorators not counted) to the last line of the body."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def families() -> list[Path]:
    """The folders of the model families."""
    return sorted(path.parent for path in MODELS.glob("*/__init__.py"))


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_files_stay_within_their_budget() -> None:
    """Fault: a module that grows until nobody reads it whole."""
    too_long = {
        name: lines
        for name, path in SOURCES.items()
        if (lines := len(path.read_text().splitlines()))
        > (MODEL_FILE_LINES if name.startswith("models/") else FILE_LINES)
    }
    assert not too_long


def test_functions_stay_within_their_budget() -> None:
    """Fault: one function that does everything."""
    too_long = [
        f"{name}:{function.lineno} {function.name}: {line_count(function)} lines"
        for name, tree in TREES.items()
        for function in functions(tree)
        if line_count(function) > FUNCTION_LINES
    ]
    assert not too_long


def test_the_95th_percentile_of_functions_stays_within_its_budget() -> None:
    """Fault: every function creeps up to just below the limit."""
    lengths = sorted(line_count(function) for tree in TREES.values() for function in functions(tree))
    assert lengths[int(0.95 * (len(lengths) - 1))] <= FUNCTION_LINES_95TH_PERCENTILE


def test_no_function_is_more_complex_than_its_budget() -> None:
    """Fault: a branchy function that a `noqa` hides from the ordinary lint."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--ignore-noqa", "--select=C901"]
    limit = f"lint.mccabe.max-complexity = {COMPLEXITY}"
    result = subprocess.run(
        [*command, "--config", limit, "--output-format=concise", str(PACKAGE)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


# --- bans ------------------------------------------------------------------------------------------------------------


def banned_calls(tree: ast.AST) -> list[str]:
    """Calls of the banned builtins, by bare name (`object.__setattr__` is another thing)."""
    return [
        f"{node.lineno} {node.func.id}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS
    ]


def environment_reads(tree: ast.AST) -> list[int]:
    """Lines that touch the process environment through `os`, also as `from os import environ`."""
    attributes = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ENVIRONMENT_READS
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]
    imports = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module == "os"
        and ENVIRONMENT_READS & {alias.name for alias in node.names}
    ]
    return attributes + imports


def silent_handlers(tree: ast.AST) -> list[int]:
    """Lines of broad handlers that only pass."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in BROAD))
        and all(isinstance(statement, ast.Pass) for statement in node.body)
    ]


def test_banned_builtins_are_not_called() -> None:
    """Fault: attributes probed or set by name, text run as code."""
    found = {name: banned_calls(tree) for name, tree in TREES.items() if name not in MAY_CALL_BANNED}
    assert not {name: calls for name, calls in found.items() if calls}


def test_the_environment_is_read_in_one_place() -> None:
    """Fault: a variable read deep in a module, where no configuration shows it."""
    found = {name: environment_reads(tree) for name, tree in TREES.items() if name not in MAY_READ_ENVIRONMENT}
    assert not {name: lines for name, lines in found.items() if lines}


def test_no_error_is_swallowed_whole() -> None:
    """Fault: `except Exception: pass`, after which a failed request looks like a slow one."""
    found = {name: silent_handlers(tree) for name, tree in TREES.items()}
    assert not {name: lines for name, lines in found.items() if lines}


def test_nothing_is_left_unfinished() -> None:
    """Fault: a promise in the source in place of the thing."""
    found = [
        f"{name}:{number} {line.strip()}"
        for name, path in SOURCES.items()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert not found


# --- places ----------------------------------------------------------------------------------------------------------


def test_every_module_opens_with_its_contract() -> None:
    """Fault: a module that does not say what it is for."""
    silent = [
        name
        for name, tree in TREES.items()
        if not ast.get_docstring(tree) and not (name.startswith("models/") and name.endswith("__init__.py"))
    ]
    assert not silent


def test_model_packages_are_empty() -> None:
    """Fault: importing a hook's parent package costs time, or torch."""
    packages = [MODELS / "__init__.py", *MODELS.rglob("*/__init__.py")]
    assert [str(path) for path in packages if path.read_text().strip()] == []


def test_packages_re_export_nothing() -> None:
    """Fault: two places from which a name can be imported."""
    packages = {name: tree for name, tree in TREES.items() if name.endswith("/__init__.py")}
    assert [name for name, tree in packages.items() if len(tree.body) > 1] == []


def imported_modules(tree: ast.AST) -> set[str]:
    """Dotted names that a tree's import statements mention; for `from a import b` both `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_a_pipeline_file_imports_config_and_core_only() -> None:
    """Fault: reading the description of a pipeline loads the model's code."""
    allowed = {"__future__", "collections", "dataclasses", "typing"}
    for path in MODELS.glob("*/pipeline.py"):
        names = imported_modules(TREES[path.relative_to(PACKAGE).as_posix()])
        strangers = {
            name
            for name in names
            if name.partition(".")[0] not in allowed and not name.startswith(("omnistage.config.", "omnistage.core."))
        }
        assert strangers <= {"omnistage.config", "omnistage.core"}, path


def module_name(source: str) -> str:
    """`stages/ar/runner.py` -> `omnistage.stages.ar.runner`; a package is named by its folder."""
    dotted = "omnistage." + source.removesuffix(".py").replace("/", ".")
    return dotted.removesuffix(".__init__")


def import_graph() -> dict[str, set[str]]:
    """Module -> modules of this package that it imports. The root is left out: its public face is loaded on use."""
    modules = {module_name(name): tree for name, tree in TREES.items() if name != "__init__.py"}
    return {name: (imported_modules(tree) & modules.keys()) - {name} for name, tree in modules.items()}


@pytest.mark.parametrize("depth", [2, None], ids=["packages", "modules"])
def test_the_import_graph_has_no_rings(depth: int | None) -> None:
    """Fault: two modules, or two packages, that cannot be understood one without the other."""
    graph: dict[str, set[str]] = {}
    for source, targets in import_graph().items():
        node = ".".join(source.split(".")[:depth])
        graph.setdefault(node, set()).update(".".join(target.split(".")[:depth]) for target in targets)
        graph[node].discard(node)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"ring: {' -> '.join(error.args[1])}")


# --- models ----------------------------------------------------------------------------------------------------------


def docstrings(tree: ast.AST) -> set[ast.AST]:
    """The nodes of strings that stand alone as statements: prose, which may speak of a model as an example."""
    return {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def words_in_code(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of every identifier and string of a tree, prose left out."""
    prose = docstrings(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text) | ast.keyword(arg=str(text)):
                yield node.lineno, text
            case ast.FunctionDef(name=text) | ast.AsyncFunctionDef(name=text) | ast.ClassDef(name=text):
                yield node.lineno, text
            case ast.Constant(value=str(text)) if node not in prose:
                yield node.lineno, text


def registry_names() -> set[str]:
    """Keys of the dictionaries in `models/registry.py`."""
    tree = TREES.get("models/registry.py", ast.Module(body=[], type_ignores=[]))
    dictionaries = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    keys = [key for dictionary in dictionaries for key in dictionary.keys]
    return {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def names_a_model(text: str, names: set[str]) -> bool:
    """True if one of `names` stands in `text` as a whole word, whether in snake_case, CamelCase or prose.

    The ending `ForCausalLM` of transformers' class names tells a task, not a model.
    """
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text.replace("ForCausalLM", "")).lower()
    return any(re.search(rf"(?<![a-z0-9]){re.escape(name.lower())}(?![a-z0-9])", snake) for name in names)


def test_no_model_is_named_outside_models() -> None:
    """Fault: a special case for one model in the engine. Comments and docstrings may give a model as an example."""
    names = registry_names() | {path.name for path in families()}
    found = [
        f"{source}:{line} {text!r}"
        for source, tree in TREES.items()
        if not source.startswith("models/")
        for line, text in words_in_code(tree)
        if names_a_model(text, names)
    ]
    assert not found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AutoModelForCausalLM", False),
        ("causal_lm", True),
        ("demo", True),
        ("load_demo_weights", True),
        ("DemoThinker", True),
        ("omnistage fetch demo", True),
        ("demonstration", False),
        ("democracy_index", False),
    ],
)
def test_a_model_name_is_found_as_a_whole_word(text: str, expected: bool) -> None:
    """Fault: the search misses a name inside an identifier, or finds one inside another word."""
    assert names_a_model(text, {"causal_lm", "demo"}) is expected


# --- tests -----------------------------------------------------------------------------------------------------------


def says_something(function: Function) -> bool:
    """True if a test can fail by its own words: an assert, pytest.raises, or a helper named assert... or expect..."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in {"raises", "warns", "fail"} or name.startswith(("assert", "expect", "_assert", "_expect")):
                return True
    return False


def test_every_test_asserts_something() -> None:
    """Fault: a test that can only fail by crashing."""
    silent = [
        f"{name}:{function.lineno} {function.name}"
        for name, tree in TEST_TREES.items()
        for function in functions(tree)
        if function.name.startswith("test_") and not says_something(function)
    ]
    assert not silent


def has_mirror(source: str) -> bool:
    """True if tests/<package>/ holds test_<module>.py, test_<module>_<topic>.py or test_<folder>_<module>.py."""
    path = Path(source)
    package, stem = TESTS / path.parts[0], path.stem.strip("_")
    stems = {test.stem for test in package.rglob("test_*.py")}
    mirrors = {f"test_{stem}", f"test_{path.parent.name}_{stem}"}
    return any(test in mirrors or test.startswith(f"test_{stem}_") for test in stems)


def test_every_source_with_behaviour_has_its_mirror_among_the_tests() -> None:
    """Fault: a module that no test names. Files that only declare (messages, tables, descriptions) need none."""
    missing = [
        name
        for name, tree in TREES.items()
        if "/" in name and not name.endswith("__init__.py")
        if any(not declares_only(function) for function in functions(tree)) and not has_mirror(name)
    ]
    assert not missing
