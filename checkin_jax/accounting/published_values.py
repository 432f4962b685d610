"""Published values of epsilon, each with the certified bracket of the same setting."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Iterator

from checkin_jax import _validate, protocols, randomizers
from checkin_jax._suggest import named
from checkin_jax.accounting.account import account


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedValue:
    """A published epsilon, and the bracket of this package for the same run.

    Attributes:
      table: name of its table in `literature`.
      setting: protocol and mechanism, in the names of this package.
      delta: of the run.
      bound: the bound behind the value.
      direction: "upper" or "lower", as its source claims.
      published: epsilon in nats.
      lower, epsilon: ends of the certified bracket, rounded outwards.
    """

    table: str
    setting: str
    delta: float
    bound: str
    direction: str
    published: float
    lower: float
    epsilon: float

    @property
    def verdict(self) -> str:
        """Comparison of the value with the bracket, in a word.

        "contradicted": an upper bound below the lower end, or a lower bound above the upper end. "sharper" or "looser":
        compared with the end of the bracket in its direction.
        """
        if self.direction == "upper":
            contradicted, sharper = self.published < self.lower, self.published < self.epsilon
        else:
            contradicted, sharper = self.published > self.epsilon, self.published > self.lower
        return "contradicted" if contradicted else "sharper" if sharper else "looser"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Published values of one source.

    Attributes:
      name: argument of `literature`.
      title: the settings, in a few words.
      source: authors and year.
      artefact: source of the values: a repository, its commit and a file.
      obtained: how the values were read from it.
      remark: differences between the source's setting and ours, or why a value cannot be true; may be empty.
      rows: as in `published_values.json`.
    """

    name: str
    title: str
    source: str
    artefact: str
    obtained: str
    remark: str
    rows: tuple[dict, ...]

    def values(self) -> Iterator[PublishedValue]:
        """Rows with their brackets, which are computed now."""
        for row in self.rows:
            setting, lower, epsilon = _bracket(row)
            yield PublishedValue(
                table=self.name,
                setting=setting,
                delta=row["delta"],
                bound=row["bound"],
                direction=row["direction"],
                published=row["published"],
                lower=lower,
                epsilon=epsilon,
            )


def _bracket(row: dict) -> tuple[str, float, float]:
    if "allocation" in row:
        # A local import, since dp_accounting takes a second.
        from checkin_jax.accounting.interop.allocation import random_allocation

        arguments = row["allocation"]
        found = random_allocation(**arguments, delta=row["delta"])
        return _call("random_allocation", arguments), found.lower, found.epsilon
    (protocol, of_run), (randomizer, of_message) = row["protocol"], row["randomizer"]
    guarantee = account(
        getattr(protocols, protocol)(**of_run),
        getattr(randomizers, randomizer)(**of_message),
        delta=row["delta"],
    )
    setting = f"{_call(protocol, of_run)}, {_call(randomizer, of_message)}"
    return setting, guarantee.lower, guarantee.epsilon


def _call(name: str, arguments: dict) -> str:
    given = (
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value!r}"
        for key, value in arguments.items()
    )
    return f"{name}({', '.join(given)})"


@functools.cache
def tables() -> dict[str, PublishedTable]:
    """Tables of published values by name, in the order of the page."""
    text = (importlib.resources.files("checkin_jax.accounting") / "published_values.json").read_text(
        encoding="utf-8"
    )
    return {
        table["name"]: PublishedTable(**table | {"rows": tuple(table["rows"])})
        for table in json.loads(text)["tables"]
    }


@named
def literature(table: str | None = None) -> list[PublishedValue]:
    """Published values, each with its certified bracket, which is computed now.

    Args:
      table: a name in `tables()`. Default: all tables, which takes half a minute.

    Returns:
      The rows, in the order of their table.

    Raises:
      ValueError: no such table.

    Examples:
      >>> import checkin_jax as cj
      >>> row = cj.literature("clones-2021")[0]
      >>> print(f"{row.published:.4f} published; {row.lower:.4f} to {row.epsilon:.4f}: {row.verdict}")
      0.1728 published; 0.1169 to 0.1183: looser
    """
    if table is not None and (not isinstance(table, str) or table not in tables()):
        raise _validate.error(f"one of {', '.join(tables())}", table=table)
    chosen = tables().values() if table is None else [tables()[table]]
    return [value for one in chosen for value in one.values()]
