"""Mutation score of numerical modules: how many small errors of arithmetic the quick tests notice.

    python benchmarks/mutants.py [MODULE ...] [--mutants 300] [--seed SEED] [--minutes 60]

A mutant differs from a module in one number, sign, operator, comparison, or direction of rounding. Strings,
annotations, errors, limits of arguments and the sizes of margins of rounding (below 1e-6) stay. The mutant lives
in a copy of the package. Quick tests of tests/bounds and tests/unit that execute its statement run there, the
fastest first, and after them the other tests of their files, which may use what was compiled, as long as all of
them together took less than 30 s: first tests against truth, then, if they notice nothing, kept figures
(tests/bounds/test_frozen_figures.py). A failure kills the mutant, and so does taking three times as long and a
minute more. Survivors are printed as `file:line before -> after`, scores by room as rows of a table: tried, noticed
by a test against truth, noticed as a moved figure. The sample is uniform over all mutants of the modules. The seed
is the clock's unless given. A seed draws the same mutants of the same source, in the same order.

The folder build/mutants keeps which test executed which lines, by file of tests, until the package or the file
changes.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
_KEPT = ROOT / "build" / "mutants"
# Whatever computes numbers of a bound.
_ROOMS = "kernels", "numerics", "accounting/composition", "accounting/bounds"
# Seconds that the tests of one mutant took together, before they were given a mutant.
_MOST_SECONDS = 30.0
# Added to the status of pytest, so that a process which never came to it is not taken for a failing test.
_CAME_TO_PYTEST = 100
# Kept figures, which see a mutant that only loosens a bound.
_FIGURES = "tests/bounds/test_frozen_figures.py"
# Imported once for all mutants.
_LIBRARIES = ["jax", "scipy.stats", "scipy.optimize", "dp_accounting", "mpmath", "pytest"]
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
}
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
}
_PAIRS = ("min", "max"), ("minimum", "maximum"), ("floor", "ceil"), ("argmin", "argmax"), ("up", "down")
_NAMES = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
# Mutants that no one-sided test can tell from the module, as (file, line, expression, mutant): the reason.
EQUIVALENT = {
    (
        "numerics/tilted_sums.py",
        "while (total.about(order + step)[0] - mean) * step > 2.0 * away**2:",
        "2",
        "(3)",
    ): "every order gives a bound on its side; other distances of tilts change only how sharp it is",
    (
        "numerics/tilted_sums.py",
        "x = total.least + h * (low + stride * np.arange(skip, points // stride, dtype=np.float64))",
        "points // stride",
        "(points / stride)",
    ): "points are 16 strides times a power of two, so the quotient is exact",
    # For w = e^{-order h}: the mean modulus of h w / (1 - w e^{i t})^2 over the frequencies is h w / (1 - w^2), but
    # for one period of the weights, which is below h / (1 - w).
    (
        "numerics/tilted_sums.py",
        "value, error = tail(h * by_value, h / once**2)",
        "2",
        "(1)",
    ): "frequencies left out add up to at most their mean modulus, which is below this too",
    (
        "numerics/two_point_laws.py",
        "hardest[order[fit.excess[order] > 1e-4]] = True",
        "0.0001",
        "(5e-05)",
    ): "a search stops there; the largest remaining deficit is added to its outcome, whatever it is",
    (
        "accounting/bounds/unequal/pooled_clients.py",
        "widest = 6e6 / self.neg_log_tail / (share * (1.0 - share))",
        "1.0",
        "(2.0)",
    ): "fewer positions are drawn; the bound holds for any number",
    (
        "accounting/composition/local_view.py",
        "if counts is None or counts.number[-1] > _SIZES[-1]:",
        "-1",
        "(1)",
    ): "more often there is no value, which other bounds replace",
    (
        "kernels/messages/likelihood_polytopes.py",
        "return xp.maximum(xp.exp(loss) * xp.expm1(self.epsilon0 - loss), 0.0) / (p + 1.0)",
        "xp.maximum(xp.exp(loss) * xp.expm1(self.epsilon0 - loss), 0.0) / (p + 1.0)",
        "(xp.maximum(xp.exp(loss) * xp.expm1(self.epsilon0 - loss), 0.0))",
    ): "larger, and the least of several upper bounds is taken",
    (
        "kernels/composition/pld.py",
        "epsilon = epsilon + 64.0 * UNIT * xp.sum(counts) / orders  # rounding of one log moment per round",
        "64.0 * UNIT",
        "(64.0)",
    ): "more is added to an upper end, and another method gives a smaller one",
    (
        "kernels/composition/pld.py",
        "scale = 1.0 / xp.maximum(top, 1e-300)",
        "1.0",
        "(0.5)",
    ): "a search for the best order begins there; every order gives a bound",
    (
        "kernels/execution/backend.py",
        "function(*jax.tree.unflatten(tree, [leaf[i] for leaf in leaves])) for i in range(len(leaves[0]))",
        "0",
        "(1)",
    ): "all arrays have the same number of rows",
    (
        "numerics/tilted_sums.py",
        "_BEYOND, _STEPS = 25.0, np.asarray([0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0, 4.5, 7.0, 12.0])",
        "12.0",
        "(6.0)",
    ): "orders of Chernoff's bound that are tried; each of them holds",
    (
        "kernels/messages/gaussian_moments.py",
        "beyond = log_weight + xp.log(inverse_rate) + order * (end - log_z) + 0.5 * order * (order - 1.0) * mu * mu",
        "1.0",
        "(0.5)",
    ): "larger: the part beyond the nodes counts more",
    (
        "kernels/clones.py",
        "first, last = xp.minimum(cut.first, n - 1.0) + 1.0, xp.minimum(cut.last, n - 1.0) + 1.0",
        "n - 1.0",
        "(n + 1.0)",
    ): "cells that have mass end before n - 1",
    (
        "numerics/counts/poisson_binomial.py",
        "return max(float(rest - second.sum()), 0.0)",
        "rest - second.sum()",
        "(rest + second.sum())",
    ): "a larger variance widens the range of values",
    (
        "accounting/composition/renyi.py",
        "fine = np.geomspace(1e-4 * losses[1], losses[min(_FINE_UP_TO, len(losses) - 1)], _FINE)",
        "0.0001",
        "(5e-05)",
    ): "further nodes; chords between any nodes are above the profile",
    (
        "kernels/clones.py",
        "return xp.where(total > 0, part / xp.where(total > 0, total, 1.0), 0.0)",
        "1.0",
        "(2.0)",
    ): "a quotient that is not used, since the value there is set to 0",
    (
        "numerics/staged_clones.py",
        "return staged_games.MANY if mean > _MANY_STEPS else staged_games.USUAL",
        "mean > _MANY_STEPS",
        "(mean >= _MANY_STEPS)",
    ): "either number of nodes gives a bound",
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """An expression of a module by its place in the source, and what replaces it.

    `lines` are those of its statement, None where the statement is executed when the module is imported.
    """

    module: str
    line: int
    start: int
    stop: int
    before: str
    after: str
    lines: range | None

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.before} -> {self.after}"


def _changed(node: ast.expr) -> Iterator[ast.expr]:
    """Expressions that differ from this one in one place at its top."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(value=float(value)):
            others = (0.5 * value, 2.0 * value) if value else (1.0,)
            yield from (ast.Constant(each) for each in others if not 0.0 < value < 1e-6)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            yield ast.BinOp(left, _OPERATORS[type(operator)](), right)
            yield left
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            yield ast.Compare(node.left, [_COMPARISONS[type(operator)]()], node.comparators)
        case ast.Attribute(attr="inf"):
            yield ast.UnaryOp(ast.USub(), node)
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            yield ast.Call(ast.Name(_NAMES[name]), node.args, node.keywords)
        case ast.Call(func=ast.Attribute(attr=name) as function) if name in _NAMES:
            yield ast.Call(ast.Attribute(function.value, _NAMES[name]), node.args, node.keywords)


def _expressions(node: ast.AST, lines: range | None, inside: bool) -> Iterator[tuple[ast.expr, range | None]]:
    """Expressions that compute something and the lines of their statements.

    Annotations, decorators, text, errors and limits of arguments are left out.
    """
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_validate."):
        return
    if isinstance(node, ast.expr):
        yield node, lines
    if isinstance(node, ast.stmt) and inside:
        assert node.end_lineno is not None
        body = getattr(node, "body", None)
        lines = range(node.lineno, max(body[0].lineno, node.lineno + 1) if body else node.end_lineno + 1)
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            within = inside or (name == "body" and isinstance(node, ast.FunctionDef))
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    yield from _expressions(each, lines, within)


def mutants(module: str, source: str) -> list[Mutant]:
    """All mutants of this source; places count bytes."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, lines in _expressions(ast.parse(source), None, False):
        for other in _changed(node):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start = starts[node.lineno - 1] + node.col_offset
            stop = starts[node.end_lineno - 1] + node.end_col_offset
            before, after = ast.unparse(node), f"({ast.unparse(other)})"
            found.append(Mutant(module, node.lineno, start, stop, before, after, lines))
    return found


class _Recorder:
    """Plugin of pytest: seconds of each test that passes, and the lines of the package that it executes."""

    def __init__(self, package: Path) -> None:
        self._prefix = f"{package}{os.sep}"
        self._lines: set[tuple[str, int]] = set()
        self._began = 0.0
        self.found: dict[str, tuple[float, dict[str, list[int]]]] = {}

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self._prefix) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def pytest_runtest_logstart(self) -> None:
        self._lines.clear()
        self._began = time.monotonic()
        threading.settrace(self._call)
        sys.settrace(self._call)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" or not report.passed:
            return
        lines: dict[str, list[int]] = {}
        for name, line in self._lines:
            lines.setdefault(name.removeprefix(self._prefix), []).append(line)
        self.found[report.nodeid] = time.monotonic() - self._began, lines


def _pytest(folder: Path, tests: list[str], record: Path | None) -> None:
    """Runs these tests with the package of this folder, and exits as pytest does; may record them."""
    import pytest

    os.chdir(folder)
    sys.path.insert(0, str(folder))
    # Mutants of one second and one length would share their bytecode.
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ["CHECKIN_JAX_TESTS_CACHE"] = str(_KEPT / "kernels")
    recorder = _Recorder(folder / "checkin_jax")
    arguments = ["-x"] * (record is None) + ["-n", "0", "--quick", "-p", "no:cacheprovider", *tests]
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        status = pytest.main(arguments, plugins=[recorder] if record else [])
    if record:
        record.write_text(json.dumps(recorder.found))
    os._exit(_CAME_TO_PYTEST + status)


def _run(folder: Path, tests: list[str], limit: float, record: Path | None = None) -> int | None:
    """Status of pytest, negative where a signal ended it; None where it takes longer than the limit.

    Raises:
      RuntimeError: the process ended by itself before it came to pytest.
    """
    process = multiprocessing.get_context("forkserver").Process(target=_pytest, args=(folder, tests, record))
    process.start()
    process.join(limit)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None
    if 0 <= process.exitcode < _CAME_TO_PYTEST:
        raise RuntimeError(
            f"a process of {tests} ended with status {process.exitcode} before its tests began"
        )
    return process.exitcode - _CAME_TO_PYTEST if process.exitcode > 0 else process.exitcode


def _digest(*paths: Path) -> str:
    """Hash of the Python files at or below these paths."""
    files = sorted(file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py")))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _recorded(folder: Path) -> dict[str, tuple[float, dict[str, list[int]]]]:
    """Seconds of each quick test that passes, and the lines of the package that it executes, by module."""
    found = {}
    shared = _digest(folder / "checkin_jax", folder / "tests" / "oracles", *folder.glob("tests/*.py"))
    for path in sorted(folder.glob("tests/[bu]*/test_*.py")):
        name = str(path.relative_to(folder))
        record = _KEPT / f"{path.stem}-{sha256((shared + _digest(path)).encode()).hexdigest()[:16]}.json"
        if not record.exists():
            for old in _KEPT.glob(f"{path.stem}-*.json"):
                old.unlink()
            # Tables are computed anew by the mutants too.
            shutil.rmtree(_KEPT / "kernels" / "tables", ignore_errors=True)
            _run(folder, [name], 900.0, record)
        if record.exists():
            found |= json.loads(record.read_text())
    return found


def _chosen(
    mutant: Mutant, recorded: dict[str, tuple[float, dict[str, list[int]]]], figures: bool
) -> list[str]:
    """Tests that execute the mutant, the fastest first, then the others of their files, up to 30 s in all.

    figures: those of kept figures, else all others.
    """
    those = {test: each for test, each in recorded.items() if test.startswith(_FIGURES) == figures}
    executing = {
        test
        for test, (_, lines) in those.items()
        if (own := lines.get(mutant.module)) and (mutant.lines is None or any(n in mutant.lines for n in own))
    }
    files = {test.partition("::")[0] for test in executing}
    candidates = [test for test in those if test.partition("::")[0] in files]
    candidates.sort(key=lambda test: (test not in executing, those[test][0]))
    chosen, seconds = [], 0.0
    for test in candidates:
        seconds += those[test][0]
        if seconds < _MOST_SECONDS or not chosen:
            chosen.append(test)
    return chosen


def _known(module: str, source: str) -> Iterator[Mutant]:
    """Mutants of this module that are not named equivalent."""
    lines = [line.strip() for line in source.splitlines()]
    for each in mutants(module, source):
        if (module, lines[each.line - 1], each.before, each.after) not in EQUIVALENT:
            yield each


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation score of numerical modules.")
    parser.add_argument("modules", nargs="*", help="such as numerics/convex.py; default: all")
    parser.add_argument("--mutants", type=int, default=300, help="size of the sample")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=60.0, help="no mutant begins after them")
    options = parser.parse_args()
    package = ROOT / "checkin_jax"
    paths = [path for room in _ROOMS for path in sorted((package / room).rglob("[!_]*.py"))]
    modules = options.modules or [str(path.relative_to(package)) for path in paths]
    population = [each for name in modules for each in _known(name, (package / name).read_text())]
    sample = random.Random(options.seed).sample(population, min(options.mutants, len(population)))
    print(f"seed {options.seed}, {len(sample)} of {len(population)} mutants\n", flush=True)
    multiprocessing.get_context("forkserver").set_forkserver_preload(_LIBRARIES)
    (_KEPT / "kernels").mkdir(parents=True, exist_ok=True)
    tried: Counter[str] = Counter()
    noticed = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for part in ("checkin_jax", "tests", "benchmarks", "train"):
            shutil.copytree(ROOT / part, folder / part)
        shutil.copy(ROOT / "pyproject.toml", folder)
        recorded = _recorded(folder)
        until = time.monotonic() + 60.0 * options.minutes
        for mutant in sample:
            if time.monotonic() > until:
                break
            path = folder / "checkin_jax" / mutant.module
            room = next(room for room in _ROOMS if mutant.module.startswith(room))
            source = path.read_bytes()
            path.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.stop :])
            tried[room] += 1
            executed = False
            for figures in (False, True):
                tests = _chosen(mutant, recorded, figures)
                executed = executed or bool(tests)
                limit = 60.0 + 3.0 * sum(recorded[test][0] for test in tests)
                if tests and _run(folder, tests, limit) != 0:
                    noticed[figures][room] += 1
                    break
            else:
                print(f"{mutant}{'' if executed else ' (no test executes it)'}", flush=True)
            path.write_bytes(source)
    print()
    for room in _ROOMS:
        print(f"| `{room}` | {tried[room]} | {noticed[0][room]} | {noticed[1][room]} |")
    print(f"| all | {tried.total()} | {noticed[0].total()} | {noticed[1].total()} |")


if __name__ == "__main__":
    main()
