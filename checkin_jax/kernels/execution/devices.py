"""Where certified numbers may come from: devices whose float64 is that of IEEE 754, which CPUs, CUDA and ROCm have.

A TPU has no complex128 FFT and a float64 made of pairs of float32, Metal none at all: error counts hold for neither.
There the accountant runs on the process's CPU, and says so once; whatever else the process computes stays where it is.
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
    """The device that arrays go to which have none of their own."""
    config: Any = jax.config  # its attributes have no types
    chosen = config.jax_default_device
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


def certified(device: Any) -> Any:
    """This device if its float64 is IEEE's, else the process's first CPU.

    Raises:
      RuntimeError: it is not, and there is no CPU: JAX_PLATFORMS names other platforms only.
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
    """Enters float64, on the device in use or, where it has none that a proof may count on, on the CPU."""
    keep_compiled()
    with contextlib.ExitStack() as entered:
        chosen = in_use()
        proper = certified(chosen)
        # A default that is stated is another one to JAX than none, and compiles anew: only where it is needed.
        if proper != chosen:
            entered.enter_context(jax.default_device(proper))
        entered.enter_context(jax.enable_x64(True))
        yield


def on_cpu(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, run on the process's CPU where there is one."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if in_use().platform == "cpu":
            return function(*args, **kwargs)
        try:
            cpu = jax.local_devices(backend="cpu")[0]
        except RuntimeError:  # JAX_PLATFORMS names other platforms only
            return function(*args, **kwargs)
        with jax.default_device(cpu):
            return function(*args, **kwargs)

    return call
