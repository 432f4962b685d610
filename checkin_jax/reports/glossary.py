"""Words of statements, explained."""

import tomllib
from importlib.resources import files


def words_of_pages() -> dict[str, str]:
    """Words of a page of which its reader may know none, each with its explanation."""
    return _tables()["pages"]


def glossary() -> dict[str, str]:
    """All words of glossary.toml, each with its explanation; those of pages first."""
    return {word: text for table in _tables().values() for word, text in table.items()}


def _tables() -> dict[str, dict[str, str]]:
    return tomllib.loads((files("checkin_jax.reports") / "glossary.toml").read_text(encoding="utf-8"))
