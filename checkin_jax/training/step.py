"""The hot path: the sum of one round's privatised updates, at a cost that follows the realised check-ins.

Clients are processed in microbatches small enough for the cache, in a loop whose trip count is traced: no
recompilation as the number of check-ins varies, no work for absent clients, and a round that overflows the
index buffer is done in several passes, never truncated, because dropping check-ins changes the mechanism.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from checkin_jax import mechanisms
from checkin_jax.randomizers import Gaussian, Randomizer
from checkin_jax.training.config import MICROBATCH_UNIT, TrainingConfig

GROUP = MICROBATCH_UNIT  # clients whose l2 messages are summed with one draw of d normals

Parameters = Any  # a pytree of float32 arrays
Loss = Callable[[Parameters, jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What happens to the gradients of a round, and how it is computed.

    Attributes:
      clip_norm: C > 0; every client's gradient is scaled down to this l2 norm.
      randomizer: Gaussian, or PureLDP realised by the l2 mechanism (epsilon0 >= 1e-5).
      simulate: "messages" draws every client's message; "aggregate" draws the sum of the messages from the
        same distribution with less work; "central-limit" (l2 mechanism only) adds normal noise of the
        limiting covariance to the sum of gradients: a simulation, not the mechanism itself.
      microbatch: clients differentiated at once, a multiple of 40: 40 suits a CPU's cache, thousands a GPU.
        Changes speed, not the distribution.
    """

    clip_norm: float
    randomizer: Randomizer
    simulate: str = "aggregate"
    microbatch: int = GROUP

    @classmethod
    def of(cls, config: TrainingConfig) -> Mechanism:
        """The part of a run's description that the step depends on; validated there."""
        return cls(
            clip_norm=config.clip_norm,
            randomizer=config.randomizer,
            simulate=config.simulate,
            microbatch=config.microbatch,
        )


def buffer_capacity(num_clients: int, rate: float, microbatch: int) -> int:
    """An index buffer a round almost never overflows: mean + 8 sd, at most all clients, rounded up."""
    mean = num_clients * rate
    wanted = min(num_clients, int(mean + 8.0 * (mean * (1.0 - rate)) ** 0.5) + 1)
    return -(-wanted // microbatch) * microbatch


def round_sum(
    mechanism: Mechanism,
    loss: Loss,
    parameters: Parameters,
    images: jax.Array,
    labels: jax.Array,
    records: np.ndarray,
    key: jax.Array,
    *,
    capacity: int,
) -> jax.Array:
    """The sum over a round's clients of their clipped and privatised gradients.

    Formal guarantees: every record given contributes exactly one message, a function of that record, the
    parameters and noise of its own; keys are folded from the round's key by position, none is used twice.

    Args:
      mechanism, loss: static; a new value compiles anew. `loss(parameters, image, label)` is the scalar
        loss of one record as it lies in `images` and `labels`.
      parameters: the current model.
      images, labels: the data set, one record a row, on the device; rows are gathered inside the loop.
      records: (k,) int32 indices into `images`, one for each message; -1 stands for a dummy message, that is
        the zero gradient privatised like any other; k = 0 gives zeros.
      key: this round's key, never used for anything else.
      capacity: length of the index buffer, a multiple of `mechanism.microbatch`; more records than this
        take several passes.

    Returns:
      (d,) float32, in the order of `jax.tree.leaves(parameters)`. To estimate a mean divide it by the
      public expected count, never by k.

    Raises:
      ValueError: `capacity` is not a positive multiple of the microbatch; a record below -1 or beyond the
        data set.
    """
    if len(records) and not -1 <= np.min(records) <= np.max(records) < len(images):
        raise ValueError(
            f"records from {np.min(records)} to {np.max(records)}: expected numbers in [-1, {len(images) - 1}]"
        )
    if capacity < 1 or capacity % mechanism.microbatch:
        raise ValueError(f"capacity={capacity}: expected a positive multiple of {mechanism.microbatch}")
    clients_key, noise_key = jax.random.split(key)
    total = jnp.zeros((sum(leaf.size for leaf in jax.tree.leaves(parameters)),), jnp.float32)
    for start in range(0, len(records), capacity):
        chunk = records[start : start + capacity]
        buffer = np.zeros((capacity,), np.int32)
        buffer[: len(chunk)] = chunk
        total = _add_messages(
            mechanism,
            loss,
            total,
            parameters,
            images,
            labels,
            buffer,
            np.int32(len(chunk)),
            np.int32(start),
            clients_key,
        )
    return _add_noise(mechanism, total, np.int32(len(records)), noise_key)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _add_messages(
    mechanism: Mechanism,
    loss: Loss,
    total: jax.Array,
    parameters: Parameters,
    images: jax.Array,
    labels: jax.Array,
    buffer: jax.Array,
    count: jax.Array,
    start: jax.Array,
    key: jax.Array,
) -> jax.Array:
    """Adds the contributions of the first `count` records of the buffer; `start` is the first one's place."""
    size = mechanism.microbatch
    offsets = jnp.arange(size, dtype=jnp.int32)

    def body(i: jax.Array, total: jax.Array) -> jax.Array:
        first = i * size
        records = jax.lax.dynamic_slice(buffer, (first,), (size,))
        real = jnp.maximum(records, 0)
        rows = jax.vmap(jax.grad(loss), (None, 0, 0))(parameters, images[real], labels[real])
        gradients = jnp.concatenate([leaf.reshape(size, -1) for leaf in jax.tree.leaves(rows)], axis=1)
        gradients = jnp.where(records[:, None] >= 0, gradients, jnp.zeros_like(gradients))
        clipped = mechanisms.clip(gradients, mechanism.clip_norm)
        return total + _contribution(mechanism, clipped, first + offsets < count, start + first, key)

    return jax.lax.fori_loop(0, -(-count // size), body, total)


def _contribution(
    mechanism: Mechanism, clipped: jax.Array, present: jax.Array, position: jax.Array, key: jax.Array
) -> jax.Array:
    """A microbatch's part of the sum; `position` is its first client's place in the round."""
    randomizer, clip_norm, size = mechanism.randomizer, mechanism.clip_norm, mechanism.microbatch
    if mechanism.simulate == "aggregate" and not isinstance(randomizer, Gaussian):
        groups = size // GROUP
        keys = _fold(key, position // GROUP + jnp.arange(groups, dtype=jnp.int32))
        # Group after group, not vmapped: under vmap the rare branch of l2_sum would always be computed.
        sums = jax.lax.map(
            lambda group: mechanisms.l2_sum(group[0], group[1], group[2], clip_norm, randomizer.epsilon0),
            (keys, clipped.reshape(groups, GROUP, -1), present.reshape(groups, GROUP)),
        )
        return jnp.sum(sums, axis=0)
    if mechanism.simulate == "messages":
        keys = _fold(key, position + jnp.arange(size, dtype=jnp.int32))
        if isinstance(randomizer, Gaussian):
            sent = mechanisms.gaussian_messages(keys, clipped, clip_norm, randomizer.noise_multiplier)
        else:
            sent = mechanisms.l2_messages(keys, clipped, clip_norm, randomizer.epsilon0)
        return mechanisms.sum_present(present, sent)
    return mechanisms.sum_present(present, clipped)


@functools.partial(jax.jit, static_argnums=0)
def _add_noise(mechanism: Mechanism, total: jax.Array, count: jax.Array, key: jax.Array) -> jax.Array:
    """Adds the noise of `count` messages in one draw, in the modes where no message carries its own."""
    randomizer = mechanism.randomizer
    if mechanism.simulate == "central-limit" and not isinstance(randomizer, Gaussian):
        multiplier = mechanisms.central_limit_multiplier(randomizer.epsilon0)
    elif mechanism.simulate == "aggregate" and isinstance(randomizer, Gaussian):
        multiplier = randomizer.noise_multiplier
    else:
        return total
    noise = mechanisms.gaussian_sum_noise(key, total.size, mechanism.clip_norm, multiplier, count)
    return total + noise


def _fold(key: jax.Array, numbers: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
