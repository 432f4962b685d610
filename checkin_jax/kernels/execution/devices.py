"""The device that computes certified numbers: the host's CPU; for sweeps also an accelerator with IEEE 754 float64.

CUDA and ROCm have it. A TPU has no complex128 FFT and emulates float64 by pairs of float32; Metal has no float64. Error
counts hold for neither. Whatever device JAX prefers, an answer of the accountant is that of the CPU, to the last bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax

from checkin_jax._compiled import keep_compiled

IEEE_754 = frozenset({"cpu", "gpu", "cuda", "rocm"})
_chosen: ContextVar[Any] = ContextVar("device of float64()", default=None)


def in_use() -> Any:
    """Device of arrays that are not placed explicitly."""
    config: Any = jax.config  # its attributes have no types
    chosen = config.jax_default_device
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


def host_cpu() -> Any:
    """The process's first CPU; where JAX_PLATFORMS excludes it, the process's first device with IEEE float64.

    Raises:
      RuntimeError: there is neither.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        first = jax.local_devices()[0]
        if first.platform.lower() in IEEE_754:
            return first
        raise RuntimeError(
            f"{first.platform} has no IEEE float64, and this process no CPU to account on: "
            f"expected JAX_PLATFORMS to name cpu too, as in {first.platform.lower()},cpu"
        ) from error


def certified(device: Any) -> Any:
    """`device` if its float64 is IEEE 754, else `host_cpu()`."""
    return device if device.platform.lower() in IEEE_754 else host_cpu()


@contextlib.contextmanager
def float64(device: Any = None) -> Iterator[None]:
    """Context with float64 on a certified device; None: that of an enclosing context, else `host_cpu()`."""
    keep_compiled()
    with contextlib.ExitStack() as entered:
        chosen = device or _chosen.get() or host_cpu()
        token = _chosen.set(chosen)
        entered.callback(_chosen.reset, token)
        # JAX compiles anew if the default device is set explicitly, so it is set only if it differs.
        if chosen != in_use():
            entered.enter_context(jax.default_device(chosen))
        entered.enter_context(jax.enable_x64(True))
        yield
