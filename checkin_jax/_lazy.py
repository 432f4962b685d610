"""Names of a package that are imported when they are first used."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def attach(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package that imports names when they are used.

    Args:
      package: its `__name__`.
      modules: of each name the module below the package that holds it, or that it is.
    """
    known = vars(sys.modules[package])

    def load(name: str) -> Any:
        if name not in modules:
            from checkin_jax._suggest import did_you_mean

            hint = did_you_mean(name, modules)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        module = importlib.import_module(f"{package}.{modules[name]}")
        # Some functions have their module's name; what holds no such name is itself the name.
        found = getattr(module, name, module) if modules[name].endswith(name) else getattr(module, name)
        known[name] = found
        return found

    return load, lambda: sorted({*known, *modules})
