"""Implementations by the exact class of what they implement: mechanisms of randomizers, schedules of protocols."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from checkin_jax import _validate

_Base = TypeVar("_Base")
_Kind = TypeVar("_Kind", bound=type)


class Registry(Generic[_Base]):
    """Subclasses of `base`, by the classes that they implement; a subclass of a registered class is unknown.

    Args:
      base: of all registered classes.
      name: of the implemented argument, in errors.
    """

    def __init__(self, base: type[_Base], name: str) -> None:
        self._base, self._name, self._kinds = base, name, dict[type, Any]()

    def add(self, implemented: type, kind: _Kind) -> _Kind:
        """Registers `kind` and returns it.

        Raises:
          TypeError: `implemented` is not a class, or `kind` is not a subclass of the base.
          ValueError: another class is registered for `implemented`.
        """
        base = self._base.__name__
        fits = isinstance(kind, type) and issubclass(kind, self._base)
        if not (isinstance(implemented, type) and fits):
            raise TypeError(
                f"{self._name}={_validate.shown(implemented)}: expected a class of {self._name}s, and a {base} for it"
            )
        if (known := self._kinds.setdefault(implemented, kind)) is not kind:
            raise ValueError(
                f"register_{base.lower()}({implemented.__name__}): {known.__name__} is registered already"
            )
        return cast(_Kind, kind)

    def of(self, implemented: Any) -> type[_Base]:
        """The class registered for the type of `implemented`; TypeError if there is none."""
        name, base = type(implemented).__name__, self._base.__name__
        if (kind := self._kinds.get(type(implemented))) is None:
            raise TypeError(
                f"{self._name}={_validate.shown(implemented)}: no {base.lower()} is registered for {name}; expected "
                f"{', '.join(sorted(known.__name__ for known in self._kinds))}, or register a subclass of {base} with "
                f"@register_{base.lower()}({name})"
            )
        return kind
