"""The import contract of CONTRIBUTING.md: which room may import which, no circles, no room too full, no name twice.

Everything is read from the source, so that imports inside of functions and under `TYPE_CHECKING` count too.
"""

import ast
import collections
import graphlib
import importlib
import pkgutil
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import checkin_jax
from benchmarks import mutants

ROOT = Path(checkin_jax.__file__).parent
# From the left to the right: a room imports from levels before its own, and from itself. Root modules that begin with
# an underscore are tools for everybody.
LEVELS = (
    # The program that checks the accountant asks nothing of it.
    ("verify",),
    ("kernels",),
    ("numerics",),
    ("rates", "protocols", "randomizers"),
    ("accounting",),
    ("plotting", "reports"),
    ("sweeps", "training"),
    ("auditing", "flower"),
    ("cli",),
)
# Those that describe what runs may name each other.
DESCRIPTIONS = {"rates", "protocols", "randomizers"}
# Packages that only some rooms may ask for: most are extras, or cost seconds of import.
OWNERS = {
    "cyclopts": ("cli",),
    "docstring_parser": ("cli",),
    "dp_accounting": ("accounting", "flower"),
    "flax": ("training.examples",),
    "flint": ("verify",),
    "flwr": ("flower",),
    "jax_privacy": ("training.schedules",),
    "loky": ("sweeps",),
    "matplotlib": ("plotting", "sweeps.figures", "training.reports"),
    "optax": ("auditing", "training"),
    "orbax": ("training.runs",),
    "pyarrow": ("sweeps",),
    "rich": ("cli",),
    "tensorflow_datasets": ("training.examples",),
}
# Siblings in one folder.
MOST = 14


def module_files(root: Path) -> dict[str, Path]:
    """Every module of the package at `root`, by its dotted name."""
    files = {}
    for path in sorted(root.rglob("*.py")):
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules a module imports, wherever in it: of the package the deepest that exists, of others the name."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in known else base


def imports(root: Path) -> dict[str, set[str]]:
    """What every module of a package imports."""
    known = module_files(root)
    return {name: set(imported(name, path, known)) - {name} for name, path in known.items()}


def room(module: str) -> str:
    """The first part below the package; empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


def complaints(found: dict[str, set[str]], package: str) -> list[str]:
    """Imports against the arrows, from rooms on no level, and of packages that belong to other rooms."""
    level = {name: i for i, names in enumerate(LEVELS) for name in names}
    wrong = []
    for module, targets in sorted(found.items()):
        here = room(module)
        if here.startswith("_") or not here:
            # Tools serve every room and ask none; the package itself, and the command's `-m`, are front doors.
            if here not in ("", "__main__"):
                inside = [name for name in targets if name.split(".")[0] == package]
                wrong += [f"{module} -> {name}" for name in inside if not room(name).startswith("_")]
            continue
        if here not in level:
            wrong.append(f"{module}: a room on no level")
            continue
        for name in sorted(targets):
            top = name.split(".")[0]
            if top == package:
                there = room(name)
                free = there == here or there.startswith("_") or {here, there} <= DESCRIPTIONS
                if not free and level.get(there, len(LEVELS)) >= level[here]:
                    wrong.append(f"{module} -> {name}")
            elif top in OWNERS:
                place = module.partition(".")[2]
                if not any(place == owner or place.startswith(f"{owner}.") for owner in OWNERS[top]):
                    wrong.append(f"{module} -> {name}")
    return wrong


FOUND = imports(ROOT)


def test_imports_point_one_way():
    assert complaints(FOUND, "checkin_jax") == []


def test_no_module_imports_itself_through_others():
    order = graphlib.TopologicalSorter({name: targets & FOUND.keys() for name, targets in FOUND.items()})
    try:
        order.prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(reversed(error.args[1]))}")


@pytest.mark.parametrize(
    ("module", "statement", "wrong"),
    [
        ("kernels.pld", "from checkin_jax.numerics import convex", True),
        ("kernels.pld", "from checkin_jax import _validate", False),
        ("kernels.pld", "from . import binomial", False),
        ("kernels.pld", "from ..accounting.account import account", True),
        ("kernels.pld", "def f():\n    import checkin_jax.cli.main", True),
        ("randomizers", "from checkin_jax import protocols", False),
        ("accounting.account", "if TYPE_CHECKING:\n    from checkin_jax.training import train", True),
        ("accounting.account", "import flax.nnx", True),
        ("accounting.account", "import checkin_jax", True),
        ("training.train", "import flax", True),
        ("training.examples.networks", "from flax import nnx", False),
        ("training.train", "from checkin_jax.sweeps import sweep", True),
        ("auditing.audit", "from checkin_jax.training import train", False),
        ("_files", "from checkin_jax import protocols", True),
        ("attic.box", "import math", True),
    ],
)
def test_the_contract_finds_what_breaks_it(tmp_path, module, statement, wrong):
    """A package of stand-ins with one statement in it."""
    root = tmp_path / "checkin_jax"
    names = "kernels/pld kernels/binomial numerics/convex protocols randomizers accounting/account _files _validate"
    names += " training/train training/examples/networks sweeps/sweep auditing/audit cli/main attic/box"
    for name in names.split() if "attic" in module else names.split()[:-1]:
        for parent in (root / name).parents:
            if parent.is_relative_to(root):
                parent.mkdir(parents=True, exist_ok=True)
                (parent / "__init__.py").touch()
        (root / f"{name}.py").touch()
    (root / f"{module.replace('.', '/')}.py").write_text(f"{statement}\n")
    assert bool(complaints(imports(root), "checkin_jax")) == wrong


def test_no_folder_has_more_siblings_than_a_reader_can_hold():
    for folder in sorted({path.parent for path in module_files(ROOT).values()}):
        siblings = [
            path.name
            for path in folder.iterdir()
            if path.name[0] != "_" and (path.suffix == ".py" or (path / "__init__.py").is_file())
        ]
        assert len(siblings) <= MOST, (folder, siblings)


def test_no_module_and_no_class_is_named_twice():
    modules = [path.stem for path in module_files(ROOT).values() if path.stem != "__init__"]
    classes = [
        node.name
        for path in module_files(ROOT).values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    for names in (modules, classes):
        assert {name for name, count in collections.Counter(names).items() if count > 1} == set()


def test_no_module_is_hidden_by_a_function_of_its_name():
    """`import a.b as c` gives the module `a.b`, whatever `a` exports."""
    for info in pkgutil.walk_packages(checkin_jax.__path__, "checkin_jax."):
        module = importlib.import_module(info.name)
        parent, _, leaf = info.name.rpartition(".")
        found = getattr(importlib.import_module(parent), leaf)
        assert isinstance(found, types.ModuleType), info.name
        assert found is module


def test_equivalent_mutants_are_of_lines_that_are_there():
    for module, line, *_ in mutants.EQUIVALENT:
        source = (ROOT / module).read_text()
        assert line in map(str.strip, source.splitlines()), (module, line)
