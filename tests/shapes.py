"""Checks the shapes in the kernels' signatures, if VARIABLE is set; `conftest.py` installs it before any import."""

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

import jax
import jaxtyping

VARIABLE = "CHECKIN_JAX_TESTS_SHAPES"


def install() -> None:
    """Has the signatures of all kernels checked that are imported from now on."""
    jaxtyping.install_import_hook("checkin_jax.kernels", "shapes.checked")


def _of_jax(value: object) -> bool:
    return any(map(_of_jax, value)) if isinstance(value, tuple | list) else isinstance(value, jax.Array)


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose JAX arrays must have the shapes and types that its signature states.

    Tracers are, so that all is checked while kernels compile. Numbers and arrays of the host, which `jit`
    has yet to turn into arrays of JAX, pass; so does everything that is not annotated by jaxtyping.
    """
    signature = inspect.signature(function)
    hints_of = functools.cache(typing.get_type_hints)

    def check(name: str, value: object, hint: object) -> None:
        if (
            isinstance(hint, type)
            and issubclass(hint, jaxtyping.AbstractArray)
            and isinstance(value, jax.Array)
        ):
            if not isinstance(value, hint):
                raise TypeError(
                    f"{function.__qualname__}: {name} is {value.dtype}{list(value.shape)}, not {hint}"
                )
        elif typing.get_origin(hint) is tuple and isinstance(value, tuple):
            for each, part in zip(value, typing.get_args(hint)):
                check(name, each, part)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _of_jax([*args, *kwargs.values()]):
            return function(*args, **kwargs)  # in NumPy, where looking takes longer than it
        hints = hints_of(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            check(name, value, hints.get(name))
        result = function(*args, **kwargs)
        check("the result", result, hints.get("return"))
        return result

    return call
