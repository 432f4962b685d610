"""Names of a package that are imported on first use."""

import ast
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def attach(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that imports names on first use.

    Args:
      package: its `__name__`.
      modules: for each name, the module below the package that contains it, or that it is.
    """
    known = vars(sys.modules[package])

    def load(name: str) -> Any:
        if name not in modules:
            from checkin_jax._suggest import did_you_mean

            hint = did_you_mean(name, modules)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        module = importlib.import_module(f"{package}.{modules[name]}")
        # Some functions have the name of their module. A module without such a member is itself the value.
        found = getattr(module, name, module) if modules[name].endswith(name) else getattr(module, name)
        known[name] = found
        return found

    return load, lambda: sorted({*known, *modules})


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`attach` for the names that the stub beside the package's `__init__.py` imports.

    Args:
      package: its `__name__`.
      file: its `__file__`.
    """
    modules = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            for alias in node.names:
                inside = Path(file).parent.joinpath(*parts, alias.name)
                is_module = inside.is_dir() or inside.with_suffix(".py").is_file()
                modules[alias.name] = ".".join([*parts, alias.name] if is_module else parts)
    return attach(package, modules)
