"""Mutants of the product, chosen at random, and whether the tests of their own packages fail for them.

    mutations.py PATH... [--sample N] [--seed S] [--only FILE:LINE...] [--tests PATH ...] [--list]

PATH is a package or a module. Mutants are those of cosmic-ray's operators and of two here: a statement that is left out,
and two that change places. Types in annotations are not mutated, nor lines of the log, nor the marks at which tests/effects
cuts a daemon.

First the tests of the package run once, each noted with its time and the lines that it runs; that is kept in
.cache/mutations until a source or a test changes. Then each mutant is made in a copy of this tree and tested by the tests
that run its line, the module's own first and the shortest of the others next, until one fails: a mutant is killed by that,
or by a run that takes too long. The same seed chooses the same mutants of the same sources.
"""

from __future__ import annotations

import argparse
import ast
import asyncio.subprocess
import difflib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import coverage
import parso
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.operators.operator import Operator

# What each run would import anew: runs are forks of this process.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
import google.protobuf.json_format  # noqa: F401
import grpc.aio  # noqa: F401
import h2.connection  # noqa: F401
import hypothesis.stateful  # noqa: F401
import pytest
import structlog  # noqa: F401
import yaml  # noqa: F401

REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = REPOSITORY / ".cache" / "mutations"
#: The tests of a package are in the folder of tests/ that mirrors it, and for these here as well.
MORE_TESTS = {
    "cri_proxy/runtime.py": ("tests/test_runtime.py", "tests/services/test_updates.py"),
    "cri_proxy/services": ("tests/engine/test_told.py",),
}
#: Operators that seldom stand where another one was meant: `is` is `==` of small numbers.
UNLIKELY = ("Is", "IsNot", "BitXor", "LShift", "RShift", "Pow", "Mod")
#: The variable by which processes that a test starts know which it is, and what has them note what they run.
TEST = "MUTATIONS_TEST"
IN_PROCESSES = """
[run]
parallel = true
data_file = {data}
context = ${{MUTATIONS_TEST}}
patch = _exit
include =
    {include}
"""
#: Calls that are statements and change nothing of what the product does.
WITHOUT_EFFECT = ("effects.before", "log.", "_log.", "self._log.", "self.log.")
#: Made by the build, so that git does not list them.
MADE = ("cri_api/*_pb2.py*", "cluster/api/allowed_options.py")
#: Seconds of tests, as they were measured, that one mutant is tested by; those of its module's own count, but all run.
TESTED_S = 60
#: A test takes too long, and a run, that takes so many times what it took without a mutant, and so many seconds.
PATIENCE, PATIENCE_S = 3, 20
PLUGINS = ("no:cacheprovider", "no:rerunfailures", "no:xdist", "no:pytest_cov")
PYTEST = ("-x", "-q", "--no-header", *(f"-p{plugin}" for plugin in PLUGINS))
#: Of modules of Hypothesis, which this process has imported; none is a test.
QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")


class Effects(Operator):  # type: ignore[misc]
    """What its operators share: statements that stand for what they do, not for a value."""

    @staticmethod
    def is_effect(node: Any) -> bool:
        """A call, or a change of what is not a local name."""
        if node.type != "simple_stmt":
            return False
        first = node.children[0]
        if first.type == "expr_stmt":
            target, operator = first.children[:2]
            return target.type == "atom_expr" or (operator.type == "operator" and operator.value != "=")
        return first.type in ("atom_expr", "del_stmt", "await_expr")

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class RemoveStatement(Effects):
    """A statement is left out."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if self.is_effect(node):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        nothing = parso.parse("pass").children[0]
        nothing.get_first_leaf().prefix = node.get_first_leaf().prefix
        node.children[0] = nothing
        return node


class SwapStatements(Effects):
    """Two statements, one after the other, change places."""

    def _pairs(self, node: Any) -> list[tuple[Any, Any]]:
        if node.type != "suite":
            return []
        pairs = zip(node.children, node.children[1:])
        # Two assignments in another order are seldom another program.
        return [
            (one, two)
            for one, two in pairs
            if self.is_effect(one) and self.is_effect(two)
            if {one.children[0].type, two.children[0].type} != {"expr_stmt"}
        ]

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        for one, two in self._pairs(node):
            yield one.children[0].start_pos, two.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        one, two = self._pairs(node)[index]
        one.children[0], two.children[0] = two.children[0], one.children[0]
        first, second = one.get_first_leaf(), two.get_first_leaf()
        first.prefix, second.prefix = second.prefix, first.prefix
        return node


@dataclass(frozen=True)
class Mutant:
    path: str  # of the module, from the root of the tree
    operator: str
    occurrence: int
    line: int
    column: int

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}:{self.column} {self.operator}"

    def is_named(self, name: str) -> bool:
        """Whether a name is this one's, or the beginning of it: a line's."""
        return re.split("[: ]", self.name)[: len(parts := re.split("[: ]", name))] == parts


@dataclass(frozen=True)
class Measured:
    """What a run of the tests has shown."""

    seconds: dict[str, float]  # by test, all of its parameters together
    failed: set[str]
    by_line: dict[str, dict[int, set[str]]]  # tests by module and line; "" = at import

    def of(self, path: str, lines: Iterable[int]) -> list[str]:
        """The tests that run one of these lines, in the order in which they are tried; all of the module's for a line
        that runs at import. Last those that run no line of the package here: they may start a process that does."""
        of_module = self.by_line.get(path, {})
        found = set[str]().union(*(of_module.get(line, ()) for line in lines))
        if "" in found:
            found = found.union(*of_module.values())
        stem = Path(path).stem
        own = {test for test in found if stem in Path(test.partition("::")[0]).stem}
        seen = set[str]().union(*(tests for each in self.by_line.values() for tests in each.values()))
        apart = self.seconds.keys() - seen
        order = sorted(
            (found | apart) - self.failed - {""},
            key=lambda test: (test in apart, test not in own, self.seconds[test]),
        )
        chosen, so_far = [], 0.0
        for test in order:
            so_far += self.seconds[test]
            if test not in own and so_far > TESTED_S and chosen:
                break
            chosen.append(test)
        return chosen


class Recorder:
    """A plugin of pytest: what failed, how long each test took, and which test's the lines are that run now."""

    def __init__(self, lines: Optional[coverage.Coverage] = None) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: list[str] = []
        self._lines = lines

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        os.environ[TEST] = function(item.nodeid)
        if self._lines is not None:
            self._lines.switch_context(function(item.nodeid))
        yield
        if self._lines is not None:
            self._lines.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[function(report.nodeid)] += report.duration
        if report.failed:
            self.failed.append(function(report.nodeid))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def function(nodeid: str) -> str:
    return nodeid.partition("[")[0]


class Tree:
    """A copy of this tree, in which tests run as forks of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True,
        ).stdout.split("\0")  # fmt: skip
        made = [str(path.relative_to(REPOSITORY)) for pattern in MADE for path in REPOSITORY.glob(pattern)]
        for name in (*filter(None, listed), *made):
            if (REPOSITORY / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, folder / name, follow_symlinks=False)
        # Tests that ask git find what they know.
        (folder / ".cache").symlink_to(REPOSITORY / ".cache")

    def write(self, path: str, source: str) -> None:
        """No bytecode of another version of the module stays, which may be of the same second and size."""
        module = self.folder / path
        module.write_text(source)
        for old in (module.parent / "__pycache__").glob(f"{module.stem}.*"):
            old.unlink()

    def run(
        self,
        tests: Iterable[str],
        patience_s: float,
        measured: Iterable[str] = (),
        options: Iterable[str] = (),
    ) -> Optional[dict[str, Any]]:
        """What the recorder of a run has; None = it took too long, or died."""
        result = self.folder / ".result"
        result.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            try:
                self._in_child([*options, *tests], list(measured), result)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        deadline = time.monotonic() + patience_s
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            time.sleep(0.02)
        return json.loads(result.read_text()) if result.exists() else None

    def _of_processes(self) -> Iterator[coverage.CoverageData]:
        for path in self.folder.glob(".started.*"):
            if path.suffix != ".ini":
                data = coverage.CoverageData(str(path))
                data.read()
                yield data

    def _in_child(self, tests: list[str], measured: list[str], result: Path) -> None:
        os.setsid()
        log = os.open(self.folder / ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(self.folder)
        sys.path[0] = os.environ["PYTHONPATH"] = str(self.folder)
        lines = None
        if measured:
            include = [f"{self.folder}/{path}{'' if path.endswith('.py') else '/**'}" for path in measured]
            started = self.folder / ".started.ini"
            started.write_text(
                IN_PROCESSES.format(data=self.folder / ".started", include="\n    ".join(include))
            )
            os.environ["COVERAGE_PROCESS_START"] = str(started)
            # What is killed says nothing.
            asyncio.subprocess.Process.kill = asyncio.subprocess.Process.terminate  # type: ignore[method-assign]
            lines = coverage.Coverage(data_file=None, config_file=False, include=include)
            lines.start()
        recorder = Recorder(lines)
        code = pytest.main([*(PYTEST if not measured else PYTEST[1:]), *QUIET, *tests], plugins=[recorder])
        # Collected nothing, or not at all: of sources that are no longer what they were.
        failed = recorder.failed or ([f"pytest: {code!r}"] if code not in (0, 1) else [])
        found: dict[str, dict[int, list[str]]] = {}
        if lines is not None:
            lines.stop()
            for data in (lines.get_data(), *self._of_processes()):
                for path in data.measured_files():
                    module = found.setdefault(os.path.relpath(path, self.folder), {})
                    for line, tests in data.contexts_by_lineno(path).items():
                        module[line] = sorted({*module.get(line, ()), *tests})
        told = {"seconds": recorder.seconds, "failed": failed, "by_line": found}
        result.with_suffix(".new").write_text(json.dumps(told))
        os.replace(result.with_suffix(".new"), result)


def measure(tree: Tree, packages: tuple[str, ...], tests: tuple[str, ...]) -> Measured:
    """What each test runs and takes; only files of tests that are not known run."""
    shared = hashlib.sha256()
    sources = [path for package in packages for path in files(REPOSITORY / package)]
    for path in (*sources, *files(REPOSITORY / "tests", below=False)):
        shared.update(path.read_bytes())
    kept = {}
    for path in (
        path for name in tests for path in files(REPOSITORY / name) if path.name.startswith("test_")
    ):
        digest = shared.copy()
        digest.update(path.read_bytes())
        kept[str(path.relative_to(REPOSITORY))] = CACHE / f"{path.stem}-{digest.hexdigest()[:20]}.json"
    unknown = [name for name, path in kept.items() if not path.exists()]
    if unknown:
        print(f"{len(unknown)} files of tests run once, with the lines that each test runs", flush=True)
        told = tree.run(unknown, 3600, packages)
        if told is None or not told["by_line"]:
            sys.exit(f"mutations: the tests do not run: {(tree.folder / '.log').read_text()[-3000:]}")
        CACHE.mkdir(parents=True, exist_ok=True)
        for name in unknown:
            kept[name].write_text(json.dumps(_of_file(told, name)))
    measured = Measured({}, set(), defaultdict(lambda: defaultdict(set)))
    for path in kept.values():
        told = json.loads(path.read_text())
        measured.seconds.update(told["seconds"])
        measured.failed.update(told["failed"])
        for module, lines in told["by_line"].items():
            for line, found in lines.items():
                measured.by_line[module][int(line)].update(found)
    if measured.failed:
        print(f"left out, as they fail without a mutant: {', '.join(sorted(measured.failed))}")
    return measured


def _of_file(told: dict[str, Any], name: str) -> dict[str, Any]:
    """The part of what a run has shown that is of one file of tests."""
    return {
        "seconds": {test: took for test, took in told["seconds"].items() if test.startswith(f"{name}::")},
        "failed": [test for test in told["failed"] if test.startswith(name)],
        "by_line": {
            module: {
                line: [test for test in found if not test or test.startswith(f"{name}::")]
                for line, found in lines.items()
            }
            for module, lines in told["by_line"].items()
        },
    }


def files(path: Path, below: bool = True) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py") if below else path.glob("*.py"))


def tests_of(path: str) -> tuple[str, ...]:
    """The folder of tests/ that mirrors a package, or the nearest one around it, and what MORE_TESTS has besides."""
    mirrored = Path("tests", *Path(path).parts[path.startswith("cri_proxy/") :])
    while not (REPOSITORY / mirrored).is_dir():
        mirrored = mirrored.parent
    more = next((tests for name, tests in MORE_TESTS.items() if path.startswith(name)), ())
    return (*([] if mirrored.name == "tests" else [str(mirrored)]), *more)


class Source:
    """A module's text, and where its statements and annotations are."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.nodes = parso.parse(text)
        self._statements = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)]
        annotations: list[Any] = [
            annotation
            for node in ast.walk(self.tree)
            for name in ("annotation", "returns")
            if (annotation := getattr(node, name, None)) is not None
        ]
        self._left_out = [
            node
            for node in self._statements
            if isinstance(node, ast.Expr) and ast.unparse(node).startswith(WITHOUT_EFFECT)
        ] + annotations
        self._decorators = [each for node in self._statements for each in getattr(node, "decorator_list", [])]

    def lines(self, line: int) -> range:
        """Those of the innermost statement there; of one with a body, its head alone."""
        around = [node for node in self._statements if first_line(node) <= line <= (node.end_lineno or 0)]
        inner = max(around, key=lambda node: (first_line(node), -(node.end_lineno or 0)))
        body = getattr(inner, "body", None)
        end = first_line(body[0]) - 1 if body else inner.end_lineno or line
        return range(first_line(inner), max(end, line) + 1)

    def is_left_out(self, operator: str, start: tuple[int, int], end: tuple[int, int]) -> bool:
        """Whether what is mutated is a type, without effect, or an argument of a decorator; or one of two that change
        places is without effect."""
        inside = self._left_out + ([] if operator == "RemoveDecorator" else self._decorators)
        return any(
            (node.lineno, node.col_offset) <= start < (node.end_lineno, node.end_col_offset)
            or (node.lineno, node.col_offset) < end <= (node.end_lineno, node.end_col_offset)
            for node in inside
        )


def first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])


def operators() -> dict[str, Any]:
    core = {name.partition("/")[2]: plugins.get_operator(name) for name in plugins.operator_names()}
    without = {name: made for name, made in core.items() if not made.arguments() and is_likely(name)}
    return {**without, "RemoveStatement": RemoveStatement, "SwapStatements": SwapStatements}


def is_likely(operator: str) -> bool:
    _, *of = operator.split("_")
    return len(of) < 2 or of[1] not in UNLIKELY or of[0] in ("Is", "IsNot")


def mutants_of(path: str, source: Source, known: dict[str, Any]) -> Iterator[Mutant]:
    nodes = list(ast_nodes(source.nodes))
    for name, made in known.items():
        operator = made()
        positions = (position for node in nodes for position in operator.mutation_positions(node))
        for occurrence, (start, end) in enumerate(positions):
            if not source.is_left_out(name, start, end):
                yield Mutant(path, name, occurrence, *start)


def sampled(mutants: Iterable[Mutant], seed: str) -> list[Mutant]:
    """One of each kind of operator at each place, so that what has most variants is not most of the sample."""
    places: dict[tuple[str, int, int, str], list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        kind = mutant.operator.partition("_")[0]
        places[mutant.path, mutant.line, mutant.column, kind].append(mutant)
    chance = random.Random(seed)
    chosen = [chance.choice(places[place]) for place in sorted(places)]
    chance.shuffle(chosen)
    return chosen


def mutated(source: Source, mutant: Mutant, known: dict[str, Any]) -> Optional[str]:
    """The module's text with the mutant in it; None = it is no other program, or none at all."""
    text = MutationVisitor.mutate_code(source.text, known[mutant.operator](), mutant.occurrence)
    try:
        return text if text and ast.dump(ast.parse(text)) != ast.dump(source.tree) else None
    except SyntaxError:
        return None


def main() -> int:
    asked = _arguments()
    packages = tuple(path.rstrip("/") for path in asked.paths)
    tests = tuple(asked.tests or dict.fromkeys(test for path in packages for test in tests_of(path)))
    with tempfile.TemporaryDirectory(prefix="crm-") as folder:
        tree = Tree(Path(folder))
        measured = measure(tree, packages, tests)
        for path in packages:
            _test(path, tree, measured, asked)
    return 0


def _test(path: str, tree: Tree, measured: Measured, asked: argparse.Namespace) -> None:
    """Test the mutants of one package, and say what has become of each."""
    known = operators()
    sources = {
        str(file.relative_to(REPOSITORY)): Source(file.read_text())
        for file in files(REPOSITORY / path)
        if file.name != "__init__.py"
    }
    every = [mutant for name, source in sources.items() for mutant in mutants_of(name, source, known)]
    candidates = [m for m in every if any(m.is_named(name) for name in asked.only)] or sampled(
        every, asked.seed
    )
    print(f"{path}: {len(every)} mutants at {len(candidates)} places; seed {asked.seed}", flush=True)
    outcomes: dict[str, int] = defaultdict(int)
    for mutant in candidates:
        tested = sum(outcomes.values())
        if tested == asked.sample and not asked.only:
            break
        source, began = sources[mutant.path], time.monotonic()
        text = mutated(source, mutant, known)
        if text is None:
            continue
        outcome, by = _outcome(tree, measured, mutant, source, text)
        outcomes[outcome] += 1
        took = time.monotonic() - began
        print(f"{tested + 1:4} {outcome:9} {mutant.name}  {by}  {took:.1f} s", flush=True)
        if outcome == "survived":
            lines = difflib.unified_diff(source.text.splitlines(), text.splitlines(), lineterm="", n=2)
            print("\n".join(f"      {line}" for line in lines if line[:3] not in ("---", "+++")), flush=True)
    tested = sum(outcomes.values())
    killed = tested - outcomes["survived"]
    share = f"{100 * killed / tested:.0f} %" if tested else "none"
    by_time = f"{outcomes['too long']} by time"
    print(f"{path}: seed {asked.seed}, {tested} mutants, {killed} killed ({by_time}): {share}", flush=True)


def _outcome(tree: Tree, measured: Measured, mutant: Mutant, source: Source, text: str) -> tuple[str, str]:
    """Whether it was killed, and by what."""
    tests = measured.of(mutant.path, source.lines(mutant.line))
    if not tests:
        return "survived", "no test runs it"
    tree.write(mutant.path, text)
    try:
        seconds = [measured.seconds[test] for test in tests]
        longest_s, all_s = (PATIENCE_S + round(PATIENCE * most) for most in (max(seconds), sum(seconds)))
        told = tree.run(tests, all_s, options=[f"--timeout={longest_s}"])
    finally:
        tree.write(mutant.path, source.text)
    if told is None:
        return "too long", f"{len(tests)} tests"
    return ("killed", told["failed"][0]) if told["failed"] else ("survived", f"{len(tests)} tests")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Mutants, and whether tests fail for them.")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a package or a module of the product")
    parser.add_argument("--sample", type=int, help="so many mutants; all otherwise")
    parser.add_argument("--seed", default="1", help="another one chooses others (%(default)s)")
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="FILE:LINE", help="all of these lines, or as they were told"
    )
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="these tests, not the package's own")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
