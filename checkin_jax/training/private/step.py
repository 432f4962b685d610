"""The hot path: the sum of one round's privatised updates, at a cost that follows the realised check-ins.

Clients are processed in microbatches small enough for the cache, in a loop whose trip count is traced: no
recompilation as the number of check-ins varies, no work for absent clients, and a round that overflows the
index buffer is done in several passes, never truncated, because dropping check-ins changes the mechanism.
"""

from __future__ import annotations

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from checkin_jax import _validate
from checkin_jax.randomizers import Gaussian, PureLDP, Randomizer
from checkin_jax.training.config import MICROBATCH_UNIT, SIMULATE, TrainingConfig
from checkin_jax.training.private import clients, mechanisms
from checkin_jax.training.private.clients import ClientUpdate, Parameters
from checkin_jax.training.private.layers import Loss
from checkin_jax.training.private.rows import Rows

GROUP = MICROBATCH_UNIT  # clients whose l2 messages are summed with one draw of d normals
AXIS = "clients"  # the one axis of a mesh over which a round is split
# A CPU's cache holds what a few dozen clients need; an accelerator wants its thousands of lanes filled.
CPU_MICROBATCH, ACCELERATOR_MICROBATCH = GROUP, 50 * GROUP


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What happens to the updates of a round, and how it is computed.

    Attributes:
      clip_norm: C in [1e-6, 1e6]; every client's update is scaled down to this l2 norm.
      randomizer: Gaussian, or PureLDP realised by the l2 mechanism (epsilon0 >= 1e-5).
      simulate: "messages" draws every client's message; "aggregate" draws the sum of the messages from the
        same distribution with less work; "central-limit" (l2 mechanism only) adds normal noise of the
        limiting covariance to the sum of gradients: a simulation, not the mechanism itself.
      microbatch: clients differentiated at once, a multiple of 40; None takes 40 on a CPU, whose cache it
        suits, and 2,000 elsewhere. Changes speed and memory, not the distribution.
      gradients: "layers", "general" or "auto", see `clients.update_rows`; equal up to rounding.

    Raises:
      ValueError, TypeError: an attribute outside its range.
    """

    clip_norm: float
    randomizer: Randomizer
    simulate: str = "aggregate"
    microbatch: int | None = None
    gradients: str = "auto"

    def __post_init__(self) -> None:
        clip_norm = _validate.real(*mechanisms.CLIP_NORMS, clip_norm=self.clip_norm)
        object.__setattr__(self, "clip_norm", clip_norm)
        _validate.choice(SIMULATE, simulate=self.simulate)
        _validate.choice(clients.GRADIENTS, gradients=self.gradients)
        if self.microbatch is not None and _validate.integer(GROUP, microbatch=self.microbatch) % GROUP:
            raise ValueError(f"microbatch={self.microbatch}: expected a multiple of {GROUP}")

    @property
    def clients_at_once(self) -> int:
        """`microbatch`, or what suits the default device."""
        if self.microbatch is not None:
            return self.microbatch
        return CPU_MICROBATCH if jax.default_backend() == "cpu" else ACCELERATOR_MICROBATCH

    @classmethod
    def of(cls, config: TrainingConfig) -> Mechanism:
        """The part of a run's description that the step depends on; validated there."""
        return cls(
            clip_norm=config.clip_norm,
            randomizer=config.randomizer,
            simulate=config.simulate,
            microbatch=config.microbatch,
        )


def buffer_capacity(num_clients: int, rate: float, microbatch: int = 1) -> int:
    """An index buffer a round almost never overflows: mean + 8 sd, at most all clients, rounded up."""
    mean = num_clients * rate
    wanted = min(num_clients, int(mean + 8.0 * (mean * (1.0 - rate)) ** 0.5) + 1)
    return -(-wanted // microbatch) * microbatch


def round_sum(
    mechanism: Mechanism,
    loss_or_update: Loss | ClientUpdate,
    parameters: Parameters,
    images: jax.Array,
    labels: jax.Array,
    records: np.ndarray,
    key: jax.Array,
    *,
    capacity: int,
    mesh: Mesh | None = None,
) -> jax.Array:
    """The sum over a round's clients of their clipped and privatised updates.

    Formal guarantees: every row of records contributes exactly one message, a function of those records, the
    parameters and noise of its own; keys are folded from the round's key by place in the round, none is used
    twice. With simulate="aggregate" the returned sum has the distribution of the sum of such messages,
    given the records, whatever the number of devices.

    Args:
      mechanism, loss_or_update: static; a new value compiles anew. A function `loss(parameters, image,
        label)` is the scalar loss of one record as it lies in `images` and `labels`; a client's update is
        the gradient of its mean over the client's records. A `ClientUpdate` computes anything else.
      parameters: the current model, floating-point arrays; clients' updates are float32 from clipping on.
      images, labels: the data set, one record a row, on the device (on all of `mesh`); rows are gathered
        inside the loop.
      records: (k,) int32 indices into `images`, or (k, r) for clients of r records, one row a message. A row
        of -1 stands for a dummy message: the zero update, privatised like any other. k = 0 gives zeros.
      key: this round's key, never used for anything else.
      capacity: length of the index buffer, rounded up to whole microbatches; more rows than this take
        several passes, each of which compiles to the same program.
      mesh: devices that share the work, with the one axis "clients" of type Auto; every one processes
        every n-th microbatch. In several processes each passes the same arguments. None uses one device.

    Returns:
      (d,) float32, in the order of `jax.tree.leaves(parameters)`, on every device of `mesh`. To estimate a
      mean divide it by the public expected count, never by k.

    Raises:
      ValueError, TypeError: `capacity` below 1; records of a wrong shape or kind, below -1, beyond the data
        set or partly -1; a mesh of other axes; gradients="layers" where that is impossible.
    """
    size = mechanism.clients_at_once
    capacity = -(-_validate.integer(1, capacity=capacity) // size) * size
    records = _checked(records, len(images))
    if mesh is not None and (mesh.axis_names != (AXIS,) or mesh.axis_types != (jax.sharding.AxisType.Auto,)):
        raise ValueError(f"mesh={mesh}: expected the one axis {AXIS!r} of type Auto")
    clients_key, noise_key = _two_keys(key)
    sums = []
    for start in range(0, max(1, len(records)), capacity):
        chunk = records[start : start + capacity]
        buffer = np.full((capacity, records.shape[1]), -1, np.int32)
        buffer[: len(chunk)] = chunk
        place = np.array([len(chunk), start], np.int32)
        arguments = parameters, images, labels, buffer, place, clients_key
        sums.append(_sum_messages(mechanism, loss_or_update, mesh, *arguments))
    return _add_noise(mechanism, functools.reduce(jnp.add, sums), np.int32(len(records)), noise_key)


def _checked(records: np.ndarray, num_records: int) -> np.ndarray:
    """The records as (k, r), every one of which exists."""
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
    dummy = records < 0
    if np.any(dummy.any(axis=1) != dummy.all(axis=1)):
        raise ValueError("records: a row has both -1 and real records; expected all -1 (a dummy) or none")
    return records


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _sum_messages(
    mechanism: Mechanism,
    loss_or_update: Loss | ClientUpdate,
    mesh: Mesh | None,
    parameters: Parameters,
    images: jax.Array,
    labels: jax.Array,
    buffer: jax.Array,
    place: jax.Array,
    key: jax.Array,
) -> jax.Array:
    """The contributions of the first rows of the buffer; `place` is their number and that of the first."""
    size = mechanism.clients_at_once
    offsets = jnp.arange(size, dtype=jnp.int32)

    def device_sum(
        parameters: Parameters,
        images: jax.Array,
        labels: jax.Array,
        buffer: jax.Array,
        place: jax.Array,
        key: jax.Array,
    ) -> jax.Array:
        count, start = place[0], place[1]
        # Every n-th microbatch: equal work, and the same groups and keys, whatever the number of devices.
        first, step = (jax.lax.axis_index(AXIS), mesh.size) if mesh is not None else (jnp.int32(0), 1)

        def body(i: jax.Array, total: jax.Array) -> jax.Array:
            position = (first + i * step) * size
            records = jax.lax.dynamic_slice_in_dim(buffer, position, size)
            clipped = _clipped(mechanism, loss_or_update, parameters, images, labels, records)
            present = position + offsets < count
            part = _contribution(mechanism, clipped, present, start + position, key)
            # Another shape would be broadcast: a release that nobody accounted for.
            chex.assert_shape(part, total.shape)
            chex.assert_type(part, jnp.float32)
            return total + part

        microbatches = -(-count // size)
        trips = jnp.maximum(microbatches - first + step - 1, 0) // step
        dimension = sum(x.size for x in jax.tree.leaves(parameters))
        own = jax.lax.fori_loop(0, trips, body, jnp.zeros((dimension,), jnp.float32))
        return own if mesh is None else jax.lax.psum(own, AXIS)

    if mesh is not None:
        # Without tracking of what varies over devices, under which a gradient with respect to the
        # parameters, equal everywhere, would be summed over the devices by itself.
        same = PartitionSpec()
        device_sum = jax.shard_map(device_sum, mesh=mesh, in_specs=same, out_specs=same, check_vma=False)
    return device_sum(parameters, images, labels, buffer, place, key)


def round_messages(
    mechanism: Mechanism,
    loss_or_update: Loss | ClientUpdate,
    parameters: Parameters,
    images: jax.Array,
    labels: jax.Array,
    records: np.ndarray,
    key: jax.Array,
    *,
    capacity: int,
) -> np.ndarray:
    """Every message of a round, in the order of `records`: what `round_sum` adds up with simulate="messages".

    All are held at once: for small rounds, and for those who look at single messages (the audit).

    Args: as of `round_sum`; `mechanism.simulate` is not used, and more than `capacity` rows make one larger buffer.

    Returns:
      (k, d) float32.

    Raises:
      ValueError, TypeError: as `round_sum`.
    """
    records = _checked(records, len(images))
    capacity = _validate.integer(1, capacity=capacity)
    buffer = np.full((max(1, -(-len(records) // capacity)) * capacity, records.shape[1]), -1, np.int32)
    buffer[: len(records)] = records
    return np.asarray(_messages(mechanism, loss_or_update, parameters, images, labels, buffer, key))[
        : len(records)
    ]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _messages(
    mechanism: Mechanism,
    loss_or_update: Loss | ClientUpdate,
    parameters: Parameters,
    images: jax.Array,
    labels: jax.Array,
    buffer: jax.Array,
    key: jax.Array,
) -> jax.Array:
    clipped = _clipped(mechanism, loss_or_update, parameters, images, labels, buffer)
    return _sent(mechanism, clipped, jnp.int32(0), _two_keys(key)[0])


def _clipped(
    mechanism: Mechanism,
    loss_or_update: Loss | ClientUpdate,
    parameters: Parameters,
    images: jax.Array,
    labels: jax.Array,
    records: jax.Array,
) -> Rows:
    """The clipped updates of clients by their records (m, r); a row of -1 gives zero."""
    real = jnp.maximum(records, 0)
    rows = clients.update_rows(loss_or_update, parameters, images[real], labels[real], mechanism.gradients)
    return mechanisms.clip(rows, mechanism.clip_norm, keep=records[:, 0] >= 0)


def _sent(mechanism: Mechanism, clipped: Rows, position: jax.Array, key: jax.Array) -> jax.Array:
    """The messages (m, d) of consecutive clients, the first of which has this place in the round."""
    randomizer, clip_norm = mechanism.randomizer, mechanism.clip_norm
    keys = _fold(key, position + jnp.arange(len(clipped), dtype=jnp.int32))
    if isinstance(randomizer, Gaussian):
        return mechanisms.gaussian_messages(keys, clipped.matrix(), clip_norm, randomizer.noise_multiplier)
    return mechanisms.l2_messages(keys, clipped.matrix(), clip_norm, randomizer.epsilon0)


def _contribution(
    mechanism: Mechanism, clipped: Rows, present: jax.Array, position: jax.Array, key: jax.Array
) -> jax.Array:
    """A microbatch's part of the sum; `position` is its first client's place in the round."""
    randomizer, clip_norm, size = mechanism.randomizer, mechanism.clip_norm, len(clipped)
    if mechanism.simulate == "aggregate" and isinstance(randomizer, PureLDP):
        keys = _fold(key, position // GROUP + jnp.arange(size // GROUP, dtype=jnp.int32))
        return mechanisms.l2_sum(keys, clipped, present, clip_norm, randomizer.epsilon0)
    if mechanism.simulate == "messages":
        clipped = Rows.of(_sent(mechanism, clipped, position, key))
    return clipped.combine(present.astype(jnp.float32))


@functools.partial(jax.jit, static_argnums=0)
def _add_noise(mechanism: Mechanism, total: jax.Array, count: jax.Array, key: jax.Array) -> jax.Array:
    """Adds the noise of `count` messages in one draw, in the modes where no message carries its own."""
    randomizer = mechanism.randomizer
    if mechanism.simulate == "central-limit" and isinstance(randomizer, PureLDP):
        multiplier = mechanisms.central_limit_multiplier(randomizer.epsilon0)
    elif mechanism.simulate == "aggregate" and isinstance(randomizer, Gaussian):
        multiplier = randomizer.noise_multiplier
    else:
        return total
    noise = mechanisms.gaussian_sum_noise(key, total.size, mechanism.clip_norm, multiplier, count)
    chex.assert_equal_shape([noise, total])
    return total + noise


@jax.jit
def _two_keys(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The keys of the clients' messages and of the noise drawn at once."""
    first, second = jax.random.split(key)
    return first, second


def _fold(key: jax.Array, numbers: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
