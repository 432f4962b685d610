"""Runs the host code of many settings side by side, and answers their kernel calls in batches.

A setting is a generator that yields a `Request` and is sent its answer. So the logic of a setting is written as if it
were alone, and each kernel call answers every setting that waits for the same kernel and shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from checkin_jax.kernels.execution import batching

T = TypeVar("T")
# Numbers that lanes side by side may hold at once, in each of several temporaries: 1 GB.
_FLOATS = 2**27


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """One setting's part of arrays that stay on the device."""

    block: Any
    place: int


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """A call of a kernel of one lane.

    Attributes:
      kernel: as in `batching.over`; columns: its arguments, pytrees of numpy arrays and numbers.
      held: an earlier answer that goes before them. keep: the answer is wanted as a `Held`.
      floats: about how many numbers the kernel holds at once for a lane.
    """

    kernel: Callable[..., Any]
    columns: tuple[Any, ...]
    held: Held | None = None
    keep: bool = False
    floats: int = 1

    def key(self) -> tuple[Any, ...]:
        """Equal for requests that one call can answer."""
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in map(np.asarray, jax.tree.leaves(self.columns)))
        return self.kernel, None if self.held is None else id(self.held.block), shapes


Asking = Generator[Request, Any, T]


def drive(settings: Sequence[Asking[T]], size: int) -> list[T]:
    """Runs all generators to their ends, at most `size` requests to a call; returns what they return."""
    results: list[Any] = [None] * len(settings)
    waiting: list[tuple[int, Request]] = []

    def resume(i: int, answer: Any) -> None:
        try:
            waiting.append((i, settings[i].send(answer)))
        except StopIteration as end:
            results[i] = end.value

    for i in range(len(settings)):
        resume(i, None)
    while waiting:
        groups: dict[Any, list[tuple[int, Request]]] = {}
        for i, request in waiting:
            groups.setdefault(request.key(), []).append((i, request))
        waiting.clear()
        for group in groups.values():
            fits = max(min(size, _FLOATS // group[0][1].floats), 1)
            for start in range(0, len(group), fits):
                some = group[start : start + fits]
                for (i, _), answer in zip(some, _answers([request for _, request in some], fits)):
                    resume(i, answer)
    return results


def _answers(requests: Sequence[Request], size: int) -> list[Any]:
    first = requests[0]
    columns = jax.tree.map(lambda *parts: np.stack(parts), *(request.columns for request in requests))
    if first.held is None:
        found = batching.over(first.kernel, columns, size=size)
    else:
        places = [request.held.place for request in requests if request.held is not None]
        found = batching.over(first.kernel, columns, first.held.block, places, size=size)
    if first.keep:
        return [Held(found, i) for i in range(len(requests))]
    here = jax.tree.map(np.asarray, found)
    return [jax.tree.map(lambda part, i=i: part[i], here) for i in range(len(requests))]
