"""The hot path: the sum of one round's privatised updates, at a cost proportional to the realised check-ins.

Clients are processed in cache-sized microbatches, in a loop with a traced trip count. So there is no
recompilation as the number of check-ins varies, and no work for absent clients. A round that overflows the
index buffer takes several passes. It is never truncated, because dropping check-ins would change the
mechanism.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from checkin_jax import _validate
from checkin_jax.training.private import clients
from checkin_jax.training.private.clients import ClientUpdate, Parameters, Records
from checkin_jax.training.private.layers import Loss
from checkin_jax.training.private.mechanism import GROUP, Mechanism, clip, fold
from checkin_jax.training.private.per_client_gradients import ClientVectors

AXIS = "clients"  # the one axis of a mesh over which a round is split
GRADIENTS = ("auto", "layers", "general")
# A few dozen clients fit into a CPU's cache; an accelerator has thousands of lanes.
CPU_MICROBATCH, ACCELERATOR_MICROBATCH = GROUP, 50 * GROUP
MOST_AT_ONCE = 10**6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Performance:
    """Settings of speed and memory, which change results by rounding only.

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


def buffer_capacity(num_clients: int, rate: float, microbatch: int = 1) -> int:
    """Capacity of an index buffer that rarely overflows: mean + 8 sd, at most all clients, rounded up."""
    mean = num_clients * rate
    wanted = min(num_clients, int(mean + 8.0 * (mean * (1.0 - rate)) ** 0.5) + 1)
    return -(-wanted // microbatch) * microbatch


def round_sum(
    mechanism: Mechanism,
    loss_or_update: Loss | ClientUpdate,
    parameters: Parameters,
    data: Records,
    records: np.ndarray,
    key: jax.Array,
    *,
    capacity: int,
    performance: Performance | None = None,
) -> jax.Array:
    """Sum over a round's clients of their clipped and privatised updates.

    Formal guarantees: every row of records contributes exactly one message, a function of those records, the
    parameters and its own noise. Keys are folded from the round's key by place in the round, and none is used
    twice. With simulate="aggregate" the returned sum has the law of the sum of such messages given the
    records, on any number of devices.

    Args:
      mechanism, loss_or_update, performance: static; a new value compiles anew. A function `loss(parameters,
        record)` is the scalar loss of one record of `data`; a client's update is the gradient of its mean
        over the client's records. A `ClientUpdate` computes anything else. Either may take a key as its last
        argument.
      parameters: the current model, floating-point arrays; clients' updates are float32 from clipping on.
      data: pytree of arrays, one record per row, on the device (on all of the mesh); rows are gathered inside
        the loop.
      records: (k,) int32 indices into the rows of `data`, or (k, r) for clients of up to r records, one row
        per message; shorter rows are padded with -1. A row of -1 only stands for a dummy message: the zero
        update, privatised like any other. k = 0 gives zeros.
      key: this round's key, used nowhere else.
      capacity: length of the index buffer, rounded up to whole microbatches. More rows take several passes of
        the same compiled program.
      performance: settings of the computation. Each of a mesh's n devices processes every n-th microbatch,
        and with several processes each passes the same arguments. None: one device and its defaults.

    Returns:
      (d,) float32, in the order of `jax.tree.leaves(parameters)`, on every device of the mesh. To estimate a
      mean, divide by the public expected count, never by k.

    Raises:
      ValueError, TypeError: `capacity` below 1; records of a wrong shape or kind, below -1, beyond the data
        set, or -1 before a record; gradients="layers" where that is impossible.
    """
    performance = performance or Performance()
    size = performance.clients_at_once
    capacity = -(-_validate.integer(1, capacity=capacity) // size) * size
    records = _checked(records, data)
    clients_key, noise_key, coins_key = _keys(key)
    sums = []
    for start in range(0, max(1, len(records)), capacity):
        chunk = records[start : start + capacity]
        buffer = np.full((capacity, records.shape[1]), -1, np.int32)
        buffer[: len(chunk)] = chunk
        place = np.array([len(chunk), start], np.int32)
        given = _Pass(parameters, data, buffer, place, clients_key, coins_key)
        sums.append(_sum_messages(mechanism, performance, loss_or_update, given))
    return _add_noise(mechanism, functools.reduce(jnp.add, sums), np.int32(len(records)), noise_key)


def _checked(records: np.ndarray, data: Records) -> np.ndarray:
    """Records as (k, r), after a check that every one exists."""
    num_records = len(jax.tree.leaves(data)[0])
    records = np.asarray(records)
    if not np.issubdtype(records.dtype, np.integer):
        raise TypeError(f"records of type {records.dtype}: expected integers")
    if records.ndim not in (1, 2) or records.shape[1:] == (0,):
        raise ValueError(f"records of shape {records.shape}: expected (k,) or (k, r) with r >= 1")
    if not records.size:
        return records.reshape(0, *records.shape[1:], *(1,) * (2 - records.ndim))
    low, high = records.min(), records.max()
    if low < -1 or high >= num_records:
        raise ValueError(f"records from {low} to {high}: expected numbers in [-1, {num_records - 1}]")
    records = records.reshape(len(records), -1)
    if np.any((records[:, :-1] < 0) & (records[:, 1:] >= 0)):
        raise ValueError("records: a row has -1 before a real record; expected -1 in its last places only")
    return records


class _Pass(NamedTuple):
    """Data of one pass over the buffer; `place` is the number of its clients and the place of the first."""

    parameters: Parameters
    data: Records
    buffer: jax.Array | np.ndarray
    place: jax.Array | np.ndarray
    key: jax.Array
    coins_key: jax.Array


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _sum_messages(
    mechanism: Mechanism, performance: Performance, loss_or_update: Loss | ClientUpdate, given: _Pass
) -> jax.Array:
    """Contributions of the first rows of the buffer."""
    size, mesh = performance.clients_at_once, performance.mesh
    offsets = jnp.arange(size, dtype=jnp.int32)

    def device_sum(given: _Pass) -> jax.Array:
        count, start = given.place[0], given.place[1]
        # Every n-th microbatch: equal work, and the same groups and keys for any number of devices.
        first, step = (jax.lax.axis_index(AXIS), mesh.size) if mesh is not None else (jnp.int32(0), 1)

        def body(i: jax.Array, total: jax.Array) -> jax.Array:
            position = (first + i * step) * size
            records = jax.lax.dynamic_slice_in_dim(given.buffer, position, size)
            coins = fold(given.coins_key, start + position + offsets)
            clipped = _clipped(mechanism, loss_or_update, performance.gradients, given, records, coins)
            present = position + offsets < count
            part = mechanism.partial_sum(given.key, start + position, clipped, present)
            # Another shape would be broadcast: a release that was not accounted for.
            chex.assert_shape(part, total.shape)
            chex.assert_type(part, jnp.float32)
            return total + part

        microbatches = -(-count // size)
        trips = jnp.maximum(microbatches - first + step - 1, 0) // step
        dimension = sum(x.size for x in jax.tree.leaves(given.parameters))
        own = jax.lax.fori_loop(0, trips, body, jnp.zeros((dimension,), jnp.float32))
        return own if mesh is None else jax.lax.psum(own, AXIS)

    if mesh is not None:
        # Tracking of device-varying values is off: with it, gradients with respect to the replicated
        # parameters would be summed over the devices.
        same = PartitionSpec()
        device_sum = jax.shard_map(device_sum, mesh=mesh, in_specs=same, out_specs=same, check_vma=False)
    return device_sum(given)


def round_messages(
    mechanism: Mechanism,
    loss_or_update: Loss | ClientUpdate,
    parameters: Parameters,
    data: Records,
    records: np.ndarray,
    key: jax.Array,
    *,
    capacity: int,
    gradients: str = "auto",
) -> np.ndarray:
    """Every message of a round, in the order of `records`: the terms of `round_sum` with simulate="messages".

    All messages are in memory at once. For small rounds, and for the audit, which inspects single messages.

    Args: those of `round_sum`; `mechanism.simulate` is not used, and more than `capacity` rows enlarge the
    buffer.

    Returns:
      (k, d) float32.

    Raises:
      ValueError, TypeError: as `round_sum`.
    """
    records = _checked(records, data)
    capacity = _validate.integer(1, capacity=capacity)
    buffer = np.full((max(1, -(-len(records) // capacity)) * capacity, records.shape[1]), -1, np.int32)
    buffer[: len(records)] = records
    clients_key, _, coins_key = _keys(key)
    given = _Pass(parameters, data, buffer, np.array([len(records), 0], np.int32), clients_key, coins_key)
    return np.asarray(_messages(mechanism, gradients, loss_or_update, given))[: len(records)]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _messages(
    mechanism: Mechanism, gradients: str, loss_or_update: Loss | ClientUpdate, given: _Pass
) -> jax.Array:
    buffer = jnp.asarray(given.buffer)
    coins = fold(given.coins_key, jnp.arange(len(buffer), dtype=jnp.int32))
    clipped = _clipped(mechanism, loss_or_update, gradients, given, buffer, coins)
    return mechanism.drawn(given.key, jnp.int32(0), clipped).matrix()


def _clipped(
    mechanism: Mechanism,
    loss_or_update: Loss | ClientUpdate,
    gradients: str,
    given: _Pass,
    records: jax.Array,
    coins: jax.Array,
) -> ClientVectors:
    """Clipped updates of clients by their records (m, r) and keys (m,); a row of -1 gives zero."""
    held = records >= 0
    # Unused places repeat the row's first record with weight zero, so that no other client's record can spoil
    # the update.
    real = jnp.where(held, records, jnp.maximum(records[:, :1], 0))
    number = jnp.maximum(jnp.sum(held, axis=1, keepdims=True), 1)
    weights = held.astype(jnp.float32) / number.astype(jnp.float32)
    data = jax.tree.map(lambda x: x[real], given.data)
    rows = clients.update_rows(loss_or_update, given.parameters, data, weights, gradients, coins)
    return clip(rows, mechanism.clip_norm, keep=held[:, 0])


@functools.partial(jax.jit, static_argnums=0)
def _add_noise(mechanism: Mechanism, total: jax.Array, count: jax.Array, key: jax.Array) -> jax.Array:
    """Adds the noise of `count` messages in one draw, if messages have no noise of their own."""
    noise = mechanism.noise_of_sum(key, total.size, count)
    if noise is None:
        return total
    chex.assert_equal_shape([noise, total])
    return total + noise


@jax.jit
def _keys(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Keys of the clients' messages, of the noise drawn at once, and of the coins of clients' losses."""
    messages, noise, coins = jax.random.split(key, 3)
    return messages, noise, coins
