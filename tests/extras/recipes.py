"""Recipes of docs/training.md for packages that not everybody has: blocks of ```py, where others are ```python."""

import re
from pathlib import Path
from typing import Any

import jax

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


def names_of(package: str) -> dict[str, Any]:
    """All that the page's first block and the recipe that imports `package` define, run as users run them."""
    shared = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (recipe,) = [block for block in blocks if block.startswith(f"import {package} ")]
    lines = [line for line in recipe.splitlines() if line and not line.startswith("import")]
    assert len(lines) <= 15
    names: dict[str, Any] = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(shared + recipe, "training.md", "exec"), names)
    return names
