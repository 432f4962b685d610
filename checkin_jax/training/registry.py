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

    def add(self, kind: _Kind, *implemented: type) -> _Kind:
        """Registers `kind` for each of some classes and returns it.

        Raises:
          TypeError: one of `implemented` is not a class, or `kind` is not a subclass of the base.
          ValueError: another class is registered for one of `implemented`.
        """
        base = self._base.__name__
        fits = isinstance(kind, type) and issubclass(kind, self._base)
        for each in implemented:
            if not (isinstance(each, type) and fits):
                raise _validate.type_error(
                    f"a class of {self._name}s, and a {base} for it", **{self._name: each}
                )
            if (known := self._kinds.setdefault(each, kind)) is not kind:
                raise ValueError(
                    f"register_{base.lower()}({each.__name__}): {known.__name__} is registered already"
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
