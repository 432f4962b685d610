"""Devices that may compute certified numbers: those with IEEE 754 float64, as CPUs, CUDA and ROCm have.

A TPU has no complex128 FFT and emulates float64 by pairs of float32; Metal has no float64. Error counts hold
for neither. There the accountant runs on the process's CPU and warns once; all other computations stay on
their device.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import jax

from checkin_jax._compiled import keep_compiled

IEEE_754 = frozenset({"cpu", "gpu", "cuda", "rocm"})

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_use() -> Any:
    """Device of arrays that are not placed explicitly."""
    config: Any = jax.config  # its attributes have no types
    chosen = config.jax_default_device
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


def certified(device: Any) -> Any:
    """`device` if its float64 is IEEE 754, else the process's first CPU.

    Raises:
      RuntimeError: the device is not certified, and JAX_PLATFORMS excludes the CPU.
    """
    platform = device.platform
    if platform.lower() in IEEE_754:
        return device
    _say(platform)
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise RuntimeError(
            f"{platform} has no IEEE float64, and this process no CPU to account on: "
            f"expected JAX_PLATFORMS to name cpu too, as in {platform.lower()},cpu"
        ) from error


@functools.cache
def _say(platform: str) -> None:
    warnings.warn(
        f"{platform} has no IEEE float64: certified numbers are computed on this process's CPU",
        RuntimeWarning,
        stacklevel=4,
    )


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Context with float64, on the device in use if it is certified, else on the CPU."""
    keep_compiled()
    with contextlib.ExitStack() as entered:
        chosen = in_use()
        proper = certified(chosen)
        # JAX compiles anew if the default device is set explicitly, so it is set only if it differs.
        if proper != chosen:
            entered.enter_context(jax.default_device(proper))
        entered.enter_context(jax.enable_x64(True))
        yield


def on_cpu(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`function`, run on the process's CPU if there is one."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if in_use().platform == "cpu":
            return function(*args, **kwargs)
        try:
            cpu = jax.local_devices(backend="cpu")[0]
        except RuntimeError:  # JAX_PLATFORMS excludes the CPU
            return function(*args, **kwargs)
        with jax.default_device(cpu):
            return function(*args, **kwargs)

    return call
