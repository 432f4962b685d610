"""Mutation score of numerical modules: how many small errors of arithmetic the tests that import a module notice.

    python benchmarks/mutants.py [MODULE ...] [--mutants 12] [--seed SEED] [--minutes 60]

A mutant differs from a module in one number, sign, operator, comparison, or direction of rounding. Strings,
annotations and error messages stay. The mutant lives in a copy of the package. The quick tests of the files that
import the module run there, the fastest file first, until one fails. A failure kills the mutant, and so does taking
five times as long as the module's own tests and 30 s more. Survivors are printed as `file:line before -> after`,
scores by module as rows of a table. The seed is the clock's unless given. A seed and a count draw the same mutants
of the same source.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Where no list of modules is given, whatever computes numbers of a bound.
_ROOMS = "kernels", "numerics", "accounting/composition"
# Tests of modules that no test imports by name.
_TESTS = {
    "accounting/composition/search.py": ["tests/bounds/test_range.py"],
    "accounting/composition/single.py": ["tests/bounds/test_local_runs.py"],
    "kernels/binary_response.py": ["tests/bounds/test_binary_response.py"],
    "kernels/messages/labelled_clones.py": ["tests/bounds/test_labelled_slots.py"],
    "kernels/messages/subsampled_gaussian.py": ["tests/bounds/test_subsampled_gaussian.py"],
    "kernels/messages/weighted_clones.py": ["tests/bounds/test_weighted_slots.py"],
}
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
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """An expression of a module by its place in the source, and what replaces it."""

    line: int
    start: int
    stop: int
    before: str
    after: str


def _changed(node: ast.expr) -> Iterator[ast.expr]:
    """Expressions that differ from this one in one place at its top."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(value=float(value)):
            yield from (ast.Constant(each) for each in ((0.5 * value, 2.0 * value) if value else (1.0,)))
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


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions that compute something, without annotations, decorators, text and errors."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        return
    if isinstance(node, ast.expr):
        yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    yield from _expressions(each)


def mutants(source: str) -> list[Mutant]:
    """All mutants of this source; places count bytes."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in _expressions(ast.parse(source)):
        for other in _changed(node):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start = starts[node.lineno - 1] + node.col_offset
            stop = starts[node.end_lineno - 1] + node.end_col_offset
            found.append(Mutant(node.lineno, start, stop, ast.unparse(node), f"({ast.unparse(other)})"))
    return found


def _tests(module: str) -> list[str]:
    """Test files that import this module, those of the table where there are none."""
    dotted = f"checkin_jax.{module.removesuffix('.py').replace('/', '.')}"
    package, _, name = dotted.rpartition(".")
    found = []
    for path in sorted(ROOT.glob("tests/[bu]*/test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            imports = isinstance(node, ast.Import | ast.ImportFrom)
            names = [each.name for each in node.names] if imports else []
            source = node.module if isinstance(node, ast.ImportFrom) else None
            if dotted in (source, *names) or (source == package and name in names):
                found.append(str(path.relative_to(ROOT)))
                break
    return found or _TESTS.get(module, [])


def _passes(folder: Path, tests: list[str], limit: float) -> bool:
    """Whether these tests pass in time with the package of this folder."""
    options = ["-x", "-q", "-n", "0", "--quick", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    # Mutants of one second and one length would share their bytecode.
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            return False


def _score(folder: Path, module: str, count: int, seed: int, until: float) -> tuple[int, int] | None:
    """Mutants killed and tried, of this module; None where it has no tests that pass. Prints survivors."""
    times = {}
    for test in _tests(module):
        begin = time.monotonic()
        if _passes(folder, [test], 600.0):
            times[test] = time.monotonic() - begin
    if not times:
        return None
    tests = sorted(times, key=times.__getitem__)
    path = folder / "checkin_jax" / module
    source = path.read_bytes()
    lines = [line.strip() for line in source.decode().splitlines()]
    known = [
        each
        for each in mutants(source.decode())
        if (module, lines[each.line - 1], each.before, each.after) not in EQUIVALENT
    ]
    drawn = random.Random(f"{seed} {module}").sample(known, min(count, len(known)))
    killed = tried = 0
    for mutant in drawn:
        if time.monotonic() > until:
            break
        path.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.stop :])
        survived = _passes(folder, tests, 30.0 + 5.0 * sum(times.values()))
        path.write_bytes(source)
        tried, killed = tried + 1, killed + (not survived)
        if survived:
            print(f"{module}:{mutant.line} {mutant.before} -> {mutant.after}", flush=True)
    return killed, tried


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation score of numerical modules.")
    parser.add_argument("modules", nargs="*", help="such as numerics/convex.py; default: all")
    parser.add_argument("--mutants", type=int, default=12, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=60.0, help="no mutant begins after them")
    options = parser.parse_args()
    package, until = ROOT / "checkin_jax", time.monotonic() + 60.0 * options.minutes
    paths = [path for room in _ROOMS for path in sorted((package / room).rglob("[!_]*.py"))]
    print(f"seed {options.seed}, {options.mutants} mutants a module\n", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("checkin_jax", "tests", "benchmarks"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        for module in options.modules or [str(path.relative_to(package)) for path in paths]:
            if time.monotonic() > until:
                print(f"| {module} | no time |", flush=True)
                continue
            score = _score(folder, module, options.mutants, options.seed, until)
            print(f"| {module} | {f'{score[0]} of {score[1]}' if score else 'no tests'} |", flush=True)


if __name__ == "__main__":
    main()
