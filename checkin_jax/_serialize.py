"""Protocols and randomizers, including foreign ones, as plain values for JSON, and back."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

import numpy as np

from checkin_jax import _validate

Described = TypeVar("Described")


class Part:
    """A frozen dataclass that may be a field of a protocol or randomizer."""


class Columns(Part):
    """A frozen dataclass of columns of numbers: read-only float64, equal if all entries are."""

    def _keep(self, **columns: object) -> None:
        for name, values in columns.items():
            column = np.array(values, dtype=np.float64)
            column.setflags(write=False)
            object.__setattr__(self, name, column)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [field.name for field in dataclasses.fields(cast(Any, self))]
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    def __hash__(self) -> int:
        return self._digest

    @functools.cached_property
    def _digest(self) -> int:
        """Digest of all entries, cached, since a bracket needs it a hundred times; equal in every process."""
        columns = [getattr(self, field.name).tobytes() for field in dataclasses.fields(cast(Any, self))]
        return int.from_bytes(hashlib.sha256(b"".join(columns)).digest()[:7])


def to_plain(value: Any) -> dict[str, Any]:
    """Kind (the class's name) and fields of a frozen dataclass.

    Raises:
      ValueError: a field that JSON cannot hold, such as a function.
    """
    fields = {field.name: _held(getattr(value, field.name)) for field in dataclasses.fields(value)}
    try:
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(
            f"{type(value).__name__}: expected fields that JSON can hold, not {_validate.shown(fields)}"
        ) from None
    return {"kind": type(value).__name__, **fields}


def _held(value: Any) -> Any:
    if isinstance(value, Part):
        return to_plain(value)
    return value.tolist() if isinstance(value, np.ndarray) else value


def shown_plain(value: Any) -> dict[str, Any]:
    """Plain values for reports: as `to_plain`, with text for fields that JSON cannot hold."""
    try:
        return to_plain(value)
    except ValueError:
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        kept = {
            n: v if isinstance(v, str | int | float | None) else _validate.shown(v) for n, v in fields.items()
        }
        return {"kind": type(value).__name__, **finite(kept)}


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with infinities as None; keys stay."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def from_plain(plain: Any, base: type[Described], *, complete: bool = True) -> Described:
    """Inverse of `to_plain`, for a concrete class below `base` that is known to this process.

    complete: True if fields with a default are required too.

    Raises:
      TypeError, ValueError: no such class, other fields than the class has, or a value out of its range.
    """
    if not isinstance(plain, Mapping):
        raise TypeError(f"{_validate.shown(plain)}: expected a mapping with the kind and its fields")
    fields = dict(plain)
    kinds = {kind.__name__: kind for kind in concrete(base)}
    kind: Any = kinds.get(str(fields.pop("kind", "")))
    if kind is None:
        raise _validate.error(f"one of {', '.join(sorted(kinds))}", kind=plain.get("kind"))
    names = {field.name for field in dataclasses.fields(kind)}
    missing = dataclasses.MISSING
    needed = {f.name for f in dataclasses.fields(kind) if complete or f.default is missing}
    if not needed <= set(fields) <= names:
        raise ValueError(
            f"{kind.__name__} with fields {_validate.shown(sorted(map(str, fields)))}: expected {sorted(names)}"
        )
    parts = {n: from_plain(v, Part) for n, v in fields.items() if isinstance(v, Mapping) and "kind" in v}
    return kind(**(fields | parts))


def concrete(base: type) -> Iterator[type]:
    """Every dataclass below `base` in the order of definition; of two with one name the later."""
    for kind in base.__subclasses__():
        if dataclasses.is_dataclass(kind) and not getattr(kind, "__abstractmethods__", None):
            yield kind
        yield from concrete(kind)
