"""Names of a package that are imported on first use."""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are those that its stub `__init__.pyi` imports.

    Args:
      package: its `__name__`.
      file: its `__file__`.
    """
    known = vars(sys.modules[package])
    places: dict[str, str] = {}
    parts = package.split(".")
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            above = ".".join(parts[: len(parts) + 1 - node.level])
            place = f"{above}.{node.module}" if node.module else above
            places |= dict.fromkeys((alias.name for alias in node.names), place)

    def load(name: str) -> Any:
        if name not in places:
            from checkin_jax._suggest import did_you_mean

            hint = did_you_mean(name, places)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        place = places[name]
        inside = importlib.import_module(place)
        is_member = place != package and hasattr(inside, name)
        known[name] = getattr(inside, name) if is_member else importlib.import_module(f"{place}.{name}")
        return known[name]

    return load, lambda: sorted({*known, *places})
