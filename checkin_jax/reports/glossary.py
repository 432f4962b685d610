"""Words of statements, explained."""

import tomllib
from importlib.resources import files

# Words of a page of which its reader may know none.
OF_PAGES = (
    "epsilon",
    "delta",
    "odds",
    "client",
    "record",
    "message",
    "randomizer",
    "LDP",
    "clip norm",
    "noise multiplier",
    "shuffler",
    "secure aggregation",
    "view",
    "drop-out",
    "tier",
    "PLD",
)


def glossary() -> dict[str, str]:
    """Words of glossary.toml, each with its explanation."""
    return tomllib.loads((files("checkin_jax.reports") / "glossary.toml").read_text(encoding="utf-8"))
