"""Settings that affect speed and memory of a run, and its results by rounding only."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from checkin_jax import _validate

GROUP = 40  # clients whose l2 messages are summed with one draw of d normals
AXIS = "clients"  # the one axis of a mesh over which a round is split
GRADIENTS = ("auto", "layers", "general")
# A few dozen clients fit into a CPU's cache; an accelerator has thousands of lanes.
CPU_MICROBATCH, ACCELERATOR_MICROBATCH = GROUP, 50 * GROUP
MOST_AT_ONCE = 10**6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Performance:
    """Settings of speed and memory.

    Attributes:
      microbatch: clients differentiated at once, a multiple of 40, at most 1e6. None: 40 on a CPU, which fit
        into its cache, and 2,000 elsewhere.
      gradients: "layers" differentiates a loss layer by layer at products, convolutions and lookups (see
        `layers.plan`). "general" uses `jax.vmap(jax.grad(loss))`, for any loss. "auto" uses "layers" if
        possible.
      mesh: devices that share the work, with the one axis "clients" of type Auto; with several processes each
        names all devices. None uses one device.

    Raises:
      ValueError, TypeError: an attribute outside its range.
    """

    microbatch: int | None = None
    gradients: str = "auto"
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        _validate.choice(GRADIENTS, gradients=self.gradients)
        if self.microbatch is not None:
            microbatch = _validate.integer(GROUP, MOST_AT_ONCE, microbatch=self.microbatch)
            if microbatch % GROUP:
                raise _validate.error(f"a multiple of {GROUP}", microbatch=self.microbatch)
            object.__setattr__(self, "microbatch", microbatch)
        if self.mesh is not None:
            axes = getattr(self.mesh, "axis_names", None), getattr(self.mesh, "axis_types", None)
            if axes != ((AXIS,), (jax.sharding.AxisType.Auto,)):
                raise ValueError(f"mesh={self.mesh}: expected the one axis {AXIS!r} of type Auto")

    @property
    def clients_at_once(self) -> int:
        """Number of clients differentiated at once: `microbatch`, or the default for the device."""
        if self.microbatch is not None:
            return self.microbatch
        return CPU_MICROBATCH if jax.default_backend() == "cpu" else ACCELERATOR_MICROBATCH

    @property
    def everywhere(self) -> NamedSharding | None:
        """Sharding of data and parameters: replicated on every device of the mesh."""
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    def placed(self, tree: Any) -> Any:
        """Arrays of a tree, replicated on every device of the mesh.

        Other processes must place the same arrays. This is not verified as by `jax.device_put`, whose
        collective fails if a process arrives half a minute late.
        """
        everywhere = self.everywhere
        if everywhere is None or jax.process_count() == 1:
            return jax.device_put(tree, everywhere)

        def place(x: Any) -> jax.Array:
            array = np.asarray(x)
            return jax.make_array_from_callback(array.shape, everywhere, lambda index: array[index])

        return jax.tree.map(place, tree)
