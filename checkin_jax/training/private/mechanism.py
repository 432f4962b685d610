"""Mechanisms that implement randomizers on devices and in sums, one registered class per randomizer.

The accountant uses a randomizer's description only. A new randomizer registers its sampler here. A randomizer
without an entry is refused, and so is a subclass of a registered one, since its changes are unknown.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np

from checkin_jax import _validate
from checkin_jax._suggest import ByName, legal
from checkin_jax.randomizers import MAX_EPSILON0, Gaussian, L2Mechanism, OneBit, PureLDP
from checkin_jax.training.private import noise
from checkin_jax.training.private.per_client_gradients import ClientVectors
from checkin_jax.training.registry import Registry

SIMULATE = ("aggregate", "messages")
GROUP = 40  # clients whose l2 messages are summed with one draw of d normals


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism(ByName, abc.ABC):
    """Draws messages of one kind of randomizer, and their sums; subclass and `register_mechanism`.

    Objects are compared by their fields and compiled into the private step. Methods are pure, and those with
    keys are traced by JAX.

    Attributes:
      randomizer: the public description.
      clip_norm: C in [1e-6, 1e6]; every client's update has been scaled down to this l2 norm.
      simulate: how the server's sum is drawn: "aggregate" or "messages".

    Raises:
      ValueError, TypeError: an attribute outside its range.
    """

    randomizer: Any
    clip_norm: float
    simulate: str = "aggregate"

    # True if the audit of sums should give clients different updates, because equal ones use another code
    # path.
    groups_clients: ClassVar[bool] = False

    _legal = legal(clip_norm=(_validate.real, *noise.CLIP_NORMS), simulate=(_validate.choice, SIMULATE))

    def __str__(self) -> str:
        return str(self.randomizer)

    @property
    @abc.abstractmethod
    def noise_multiplier(self) -> float:
        """Standard deviation of one coordinate of one message over C; approximate if it varies."""

    @abc.abstractmethod
    def messages(self, keys: jax.Array, clipped: jax.Array) -> jax.Array:
        """Draws the message of each client.

        Args:
          keys: (m,), one per client, used nowhere else.
          clipped: (m, d) float32, rows of l2 norm at most C; the zero row is a dummy's.

        Returns:
          (m, d) float32, each row a function of its own key and row only, with the clipped row as its mean.
        """

    def partial_sum(
        self, key: jax.Array, position: jax.Array, clipped: ClientVectors, present: jax.Array
    ) -> jax.Array:
        """Contribution to a round's sum of consecutive clients; the default draws every message.

        Args:
          key: of the round; keys of clients are folded from it by their place in the round.
          position: scalar int32, the place of the first client, a multiple of 40.
          clipped: m rows, m a multiple of 40.
          present: (m,) bool; rows with False send nothing.

        Returns:
          (d,) float32.
        """
        return self.drawn(key, position, clipped).combine(present.astype(jnp.float32))

    def noise_of_sum(self, key: jax.Array, dimension: int, count: jax.Array) -> jax.Array | None:
        """Draws the noise of a round's sum of `count` messages at once; the default None means no
        such noise.
        """
        return None

    def log_likelihood(self, along: np.ndarray, update: float) -> np.ndarray:
        """Log density of messages of component `along` on a unit vector v, for the clipped update
        update * v.

        Used by the audit, up to a term that does not depend on `update`, which is C, -C or 0. The default is
        that of normal noise. The audit's bounds hold for any score, and are sharpest for the true density.

        Args:
          along: float64, of any shape.
        """
        return (along * update - update**2 / 2.0) / (self.noise_multiplier * self.clip_norm) ** 2

    @property
    def distance(self) -> float:
        """Approximate shift of a message by a replaced record, in standard deviations; default 2 C over the
        noise.
        """
        return 2.0 / self.noise_multiplier

    @property
    def pure_epsilon0(self) -> float | None:
        """Epsilon of one message in nats if its delta is 0; the default None leaves it to the accountant."""
        return None

    def drawn(self, key: jax.Array, position: jax.Array, clipped: ClientVectors) -> ClientVectors:
        """Messages of consecutive clients, each with the key of its place in the round."""
        keys = fold(key, position + jnp.arange(len(clipped), dtype=jnp.int32))
        rows = clipped.matrix()
        messages = self.messages(keys, rows)
        chex.assert_equal_shape([messages, rows])
        chex.assert_type(messages, jnp.float32)
        return ClientVectors.of(messages)


_Kind = TypeVar("_Kind", bound=type[Mechanism])
_MECHANISMS = Registry(Mechanism, "randomizer")


def register_mechanism(randomizer: type) -> Callable[[_Kind], _Kind]:
    """Registers the decorated `Mechanism` for a class of randomizers.

    Args:
      randomizer: the class; its subclasses are not meant.

    Raises:
      TypeError: `randomizer` is not a class, or the decorated object is not a subclass of Mechanism.
      ValueError: another mechanism is registered for it.
    """
    return lambda kind: _MECHANISMS.add(kind, randomizer)


def mechanism_of(randomizer: Any, *, clip_norm: float, simulate: str = "aggregate") -> Mechanism:
    """Returns the mechanism registered for this randomizer.

    Raises:
      TypeError: no mechanism is registered for its class.
      ValueError: an argument outside its range.
    """
    kind = _MECHANISMS.of(randomizer)
    return kind(randomizer=randomizer, clip_norm=clip_norm, simulate=simulate)


def fold(key: jax.Array, numbers: jax.Array) -> jax.Array:
    """One key per number, from one key."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


@register_mechanism(Gaussian)
class GaussianMessages(Mechanism):
    """Clipped updates plus normal noise; a sum adds the noise of all its messages in one draw."""

    randomizer: Gaussian

    def __str__(self) -> str:
        return f"Gaussian, noise multiplier {self.noise_multiplier:g} a client"

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier, exact in every coordinate."""
        return self.randomizer.noise_multiplier

    def messages(self, keys: jax.Array, clipped: jax.Array) -> jax.Array:
        """See `noise.gaussian_messages`."""
        return noise.gaussian_messages(keys, clipped, self.clip_norm, self.noise_multiplier)

    def partial_sum(
        self, key: jax.Array, position: jax.Array, clipped: ClientVectors, present: jax.Array
    ) -> jax.Array:
        """Sum of the clipped updates, without noise if the noise is drawn once."""
        if self.simulate == "messages":
            return super().partial_sum(key, position, clipped, present)
        return clipped.combine(present.astype(jnp.float32))

    def noise_of_sum(self, key: jax.Array, dimension: int, count: jax.Array) -> jax.Array | None:
        """See `noise.gaussian_sum_noise`."""
        if self.simulate == "messages":
            return None
        return noise.gaussian_sum_noise(key, dimension, self.clip_norm, self.noise_multiplier, count)


@register_mechanism(L2Mechanism)
@register_mechanism(OneBit)
@register_mechanism(PureLDP)
class L2Messages(Mechanism):
    """Messages on a sphere (Duchi, Jordan, Wainwright); sums by groups of 40 clients, see `noise.l2_sum`."""

    randomizer: PureLDP | OneBit | L2Mechanism

    groups_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # At epsilon0 = 0 no unbiased message has a finite norm; float32 coins need a positive minimum.
        epsilon0 = _validate.real(noise.MIN_EPSILON0, MAX_EPSILON0, epsilon0=self.randomizer.epsilon0)
        least, distance = math.tanh(0.5 * epsilon0), self.randomizer.total_variation
        if distance < least * (1.0 - 1e-9):
            raise _validate.error(f"at least {least!r}, which the l2 mechanism has", total_variation=distance)

    def __str__(self) -> str:
        return f"l2 mechanism, epsilon0 = {self.randomizer.epsilon0:g} a message"

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of one coordinate in high dimension, see `noise.l2_multiplier`."""
        return noise.l2_multiplier(self.randomizer.epsilon0)

    def messages(self, keys: jax.Array, clipped: jax.Array) -> jax.Array:
        """See `noise.l2_messages`."""
        return noise.l2_messages(keys, clipped, self.clip_norm, self.randomizer.epsilon0)

    def partial_sum(
        self, key: jax.Array, position: jax.Array, clipped: ClientVectors, present: jax.Array
    ) -> jax.Array:
        """Sum over groups of clients, in the exact law of the sum of their messages."""
        if self.simulate == "messages":
            return super().partial_sum(key, position, clipped, present)
        keys = fold(key, position // GROUP + jnp.arange(len(clipped) // GROUP, dtype=jnp.int32))
        return noise.l2_sum(keys, clipped, present, self.clip_norm, self.randomizer.epsilon0)

    def log_likelihood(self, along: np.ndarray, update: float) -> np.ndarray:
        """Exact log density relative to a uniform direction, from the half sphere of the message."""
        if update == 0.0:
            return np.zeros_like(along)
        towards = np.where(along * update >= 0, -self.randomizer.epsilon0, self.randomizer.epsilon0)
        return np.log(2.0) - np.logaddexp(0.0, towards)

    @property
    def distance(self) -> float:
        """Twice the bias of the coin."""
        return 2.0 * math.tanh(self.randomizer.epsilon0 / 2.0)

    @property
    def pure_epsilon0(self) -> float | None:
        return self.randomizer.epsilon0
