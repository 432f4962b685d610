"""Mechanisms that implement randomizers on devices and in sums, one registered class per randomizer.

The accountant uses a randomizer's description only. A new randomizer registers its sampler here. A randomizer
without an entry is refused, and so is a subclass of a registered one, since its changes are unknown.

Trust model: a client trusts its own device only. `*_messages` draws every client's message. `*_sum` draws the
sum of the messages from exactly the same distribution without drawing each message; an aggregating server
observes this sum. All functions are pure, use float32, take an explicit key, and treat rows as clients. As
for any floating-point implementation, the guarantee is that of the real-valued mechanism.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
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
from checkin_jax.training.private.per_client_gradients import ClientVectors, matmul
from checkin_jax.training.registry import Registry

# Clipped norms may exceed the target by rounding, up to 1.5e-7 relative; this margin keeps them below C.
CLIP_MARGIN = 1e-6
# A float32 coin is off by up to 2.4e-7. This reduction of its bias keeps the rarer side at least as likely as
# epsilon0 requires. The message norm uses the reduced bias too, so messages stay unbiased.
COIN_MARGIN = 5e-7
MIN_EPSILON0 = 1e-5
MAX_INVERSE_NORM_SQUARED = 1000.0
CLIP_NORMS = 1e-6, 1e6
# 1 - x is 1 in float32 for x below 2^-25.
FAIR_RADIUS = 1e-8


def clip(rows: ClientVectors, clip_norm: float, keep: jax.Array | None = None) -> ClientVectors:
    """Scales each row to norm at most clip_norm (1 - 1e-6) in float32; its true norm is below clip_norm.

    A row whose norm is not finite (NaN, infinity, or overflow of its square) becomes zero: one client's
    broken gradient must not exceed the sensitivity or spoil the sum.

    Args:
      rows: one per client, float32.
      keep: (m,) bool; rows with False become zero. None uses all rows.
      clip_norm: C in [1e-6, 1e6], where underflow of squares does not matter.

    Raises:
      ValueError, TypeError: clip_norm outside its range; rows of another type, in which rounding could exceed
        C.
    """
    clip_norm = _validate.real(*CLIP_NORMS, clip_norm=clip_norm)
    if other := {str(x.dtype) for block in rows.blocks for x in block.numbers} - {"float32"}:
        raise TypeError(f"rows of type {', '.join(sorted(other))}: expected float32")
    norms = rows.norms()
    finite = jnp.isfinite(norms)
    keep = finite if keep is None else keep & finite
    factors = jnp.minimum(1.0, clip_norm * (1.0 - CLIP_MARGIN) / jnp.maximum(norms, 1e-30))
    return rows.scaled(jnp.where(keep, factors, jnp.zeros_like(factors)), keep)


def gaussian_messages(
    keys: jax.Array, clipped: jax.Array, clip_norm: float, noise_multiplier: float
) -> jax.Array:
    """Each client's message: its clipped gradient plus N(0, (noise_multiplier clip_norm)^2 I), own key.

    Args:
      keys: (m,), one key per client.
      clipped: (m, d) float32, rows of norm at most clip_norm.
    """
    return clipped + (noise_multiplier * clip_norm) * _normals(keys, clipped.shape[-1])


def gaussian_sum_noise(
    key: jax.Array, dimension: int, clip_norm: float, noise_multiplier: float, count: jax.Array
) -> jax.Array:
    """Noise of the sum of `count` Gaussian messages, in its exact law N(0, count (z C)^2 I), from one draw.

    Args:
      count: scalar, the realised number of messages (sensitive if the number is); 0 gives zeros.

    Returns:
      (dimension,) float32.
    """
    scale = (noise_multiplier * clip_norm) * jnp.sqrt(count.astype(jnp.float32))
    return scale * jax.random.normal(key, (dimension,), jnp.float32)


def l2_message_norm(dimension: int, clip_norm: float, epsilon0: float) -> float:
    """B, the norm of every message of the l2 mechanism: C / (kappa_d tanh(epsilon0 / 2)).

    kappa_d = Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2)) is the mean of <v, u> over the half sphere <v, u> >= 0.
    (The tanh is 5e-7 smaller, for the sake of float32 coins.)

    Raises:
      ValueError: epsilon0 below 1e-5 (at 0 no unbiased message of finite norm exists).
    """
    bias = _coin_bias(epsilon0)
    log_kappa = math.lgamma(dimension / 2) - math.lgamma((dimension + 1) / 2) - 0.5 * math.log(math.pi)
    return clip_norm * math.exp(-log_kappa) / bias


def l2_messages(keys: jax.Array, clipped: jax.Array, clip_norm: float, epsilon0: float) -> jax.Array:
    """Each client's epsilon0-LDP message on the sphere of norm B (Duchi, Jordan, Wainwright), own key.

    The message is B v, with v uniform on the half sphere <v, g> >= 0 with probability (1 + |g|
    tanh(epsilon0/2) / C) / 2, else on the other half. One coin combines the sign of the direction and the
    choice of the half. Densities of two gradients differ by a factor of at most
    (1 + tanh) / (1 - tanh) = e^epsilon0. Unbiased: the mean is the clipped gradient.
    Sources: [DJW18], [EFM20].

    Args:
      keys: (m,), one key per client.
      clipped: (m, d) float32, rows of norm at most clip_norm.

    Returns:
      (m, d) float32, every row of norm B = `l2_message_norm(d, clip_norm, epsilon0)`.

    Raises:
      ValueError: epsilon0 below 1e-5.
    """
    scale = l2_message_norm(clipped.shape[-1], clip_norm, epsilon0)
    coin_keys, sphere_keys = _split_each(keys)
    units, radii = _directions(clipped, clip_norm)
    flips = _flips(coin_keys, radii, epsilon0)
    x = _normals(sphere_keys, clipped.shape[-1])
    signs = flips * jnp.where(jnp.sum(x * units, axis=-1, keepdims=True) >= 0, 1.0, -1.0)
    return scale * signs * x / _norms(x)


def l2_sum(
    keys: jax.Array, clipped: ClientVectors, present: jax.Array, clip_norm: float, epsilon0: float
) -> jax.Array:
    """Sum of the messages of groups, in exactly the law of `sum(l2_messages(...))`, with d normals per group.

    A message is B s_i x_i with x_i = y_i / |y_i|, y_i normal in R^d, and s_i a sign that depends on y_i only
    through <y_i, u_i>. Split R^d into the span of the m directions u_1..u_m of a group and its complement, of
    dimension D. Inside, the coordinates alpha_i of each y_i are drawn: r normals if the span has dimension r.
    Outside, the m parts of y_1..y_m are m normal vectors in R^D: A Q with A lower triangular, normals below
    the diagonal and the root of a chi-square of D - i degrees of freedom in its i-th place (i = 0, 1, ...),
    and Q an independent uniform frame [Bar33]. Hence |y_i|^2 = |alpha_i|^2 + |A_i|^2, and the sum of the
    outer parts, weighted by s_i / |y_i|, has norm |sum of s_i A_i / |y_i|| and a uniform direction in the
    complement.

    A row whose norm is below 1e-8 C counts as zero: its coin is fair to the last bit of float32, so its
    message is uniform on the sphere, exactly as drawn by `l2_messages`. Such rows and absent ones need no
    dimension of the span.

    The basis of the span is implicit in the Cholesky factor of the Gram matrix; its deviation from
    orthonormality in float32 is about 1e-7 times the matrix's condition number. Where that could exceed 1e-4
    (equal gradients), or d < 2 m, a group's messages are drawn one by one instead. The choice depends on the
    gradients only, and both ways have the same law.

    Args:
      keys: (groups,), one key per group.
      clipped: groups * m rows of norm at most clip_norm; m consecutive rows are a group.
      present: (groups * m,) bool; rows with False send nothing.

    Returns:
      (d,) float32.

    Raises:
      ValueError: epsilon0 below 1e-5.
    """
    groups, d = len(keys), clipped.dimension
    m = len(clipped) // groups
    scale = l2_message_norm(d, clip_norm, epsilon0)
    grouped, present = clipped.grouped(groups), present.reshape(groups, m)

    together_keys, single_keys = _split_each(keys)
    if d < 2 * m:
        sums, drawn = jnp.zeros((groups, d), jnp.float32), jnp.zeros((groups,), bool)
    else:
        together = functools.partial(_draw_group, clip_norm=clip_norm, epsilon0=epsilon0)
        sums, drawn = jax.vmap(together)(together_keys, grouped, present)
    total = scale * jnp.sum(jnp.where(drawn[:, None], sums, jnp.zeros_like(sums)), axis=0)

    def one_by_one(group: jax.Array, key: jax.Array) -> jax.Array:
        rows = jax.tree.map(lambda x: x[group], grouped).matrix()
        messages = l2_messages(jax.random.split(key, m), rows, clip_norm, epsilon0)
        return matmul(present[group].astype(jnp.float32), messages)

    # A loop of conditionals, not a select, so that only groups that need it are drawn message by message.
    def complete(total: jax.Array, group: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return jax.lax.cond(drawn[group[0]], lambda: total, lambda: total + one_by_one(*group)), None

    return jax.lax.scan(complete, total, (jnp.arange(groups, dtype=jnp.int32), single_keys))[0]


def _draw_group(
    key: jax.Array, clipped: ClientVectors, present: jax.Array, *, clip_norm: float, epsilon0: float
) -> tuple[jax.Array, jax.Array]:
    """One group's sum of messages over B, and true if its Gram matrix is well conditioned; see `l2_sum`."""
    m, d = len(clipped), clipped.dimension
    gram = clipped.gram()
    norms = jnp.sqrt(jnp.diagonal(gram))
    radii = jnp.minimum(norms * (1.0 / clip_norm), 1.0)
    spanning = present & (radii > FAIR_RADIUS)
    inverse_norms = spanning.astype(jnp.float32) / jnp.where(spanning, norms, jnp.ones_like(norms))
    unit_gram = gram * inverse_norms[:, None] * inverse_norms[None, :]
    diagonal = jnp.eye(m, dtype=jnp.float32)
    factor, inverse = _cholesky(jnp.where(diagonal > 0, diagonal, unit_gram))
    # The squared Frobenius norm bounds 1 / (smallest eigenvalue). NaN, from a failed factor, compares false.
    well_conditioned = jnp.sum(inverse * inverse) < MAX_INVERSE_NORM_SQUARED

    coin_key, inside_key, frame_key, outside_key = jax.random.split(key, 4)
    flips = _flips(jax.random.split(coin_key, m), radii[:, None], epsilon0)[:, 0]
    # Coordinates of u_i in the orthonormal rows of inverse @ units: row i of the factor.
    columns = spanning.astype(jnp.float32)[None, :]
    alpha = jax.random.normal(inside_key, (m, m), jnp.float32) * columns
    outer = _outer_pieces(frame_key, m, d - jnp.sum(columns))
    lengths = jnp.sqrt(jnp.sum(alpha * alpha, axis=-1) + jnp.sum(outer * outer, axis=-1))
    signs = flips * jnp.where(jnp.sum(alpha * factor, axis=-1) >= 0, 1.0, -1.0)
    weights = present.astype(jnp.float32) * signs / lengths
    radius = jnp.linalg.norm(matmul(weights, outer))

    # Direction of the outer sum: a normal vector minus its part in the span.
    normal = jax.random.normal(outside_key, (d,), jnp.float32)
    along = matmul(inverse, inverse_norms * clipped.dot(normal))
    across = normal - clipped.combine(inverse_norms * matmul(along, inverse))
    within = clipped.combine(inverse_norms * matmul(matmul(weights, alpha), inverse))
    return within + across * (radius / jnp.linalg.norm(across)), well_conditioned


def _outer_pieces(key: jax.Array, m: int, dimension: jax.Array) -> jax.Array:
    """m independent normal vectors in R^dimension, dimension >= m, as (m, m) lower triangular coordinates in
    a uniform orthonormal frame that is independent of them: Bartlett's decomposition."""
    below_key, diagonal_key = jax.random.split(key)
    degrees = dimension - jnp.arange(m, dtype=jnp.float32)
    diagonal = jnp.sqrt(jax.random.chisquare(diagonal_key, degrees, (m,), jnp.float32))
    return jnp.tril(jax.random.normal(below_key, (m, m), jnp.float32), -1) + jnp.diag(diagonal)


def l2_multiplier(epsilon0: float) -> float:
    """Standard deviation over C of one coordinate of an l2 message as d grows: sqrt(pi/2) coth(epsilon0/2).

    Raises:
      ValueError: epsilon0 below 1e-5.
    """
    return math.sqrt(math.pi / 2) / _coin_bias(epsilon0)


def _norms(rows: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(rows * rows, axis=-1, keepdims=True))


def _normals(keys: jax.Array, dimension: int) -> jax.Array:
    return jax.vmap(lambda key: jax.random.normal(key, (dimension,), jnp.float32))(keys)


def _split_each(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    pairs = jax.vmap(jax.random.split)(keys)
    return pairs[:, 0], pairs[:, 1]


def _directions(clipped: jax.Array, clip_norm: float) -> tuple[jax.Array, jax.Array]:
    """Unit rows (zero rows stay zero) and norms over clip_norm, the latter at most 1, as (m, 1)."""
    norms = _norms(clipped)
    units = clipped / jnp.where(norms > 0, norms, jnp.ones_like(norms))
    return units, jnp.minimum(norms / clip_norm, 1.0)


def _coin_bias(epsilon0: float) -> float:
    if not epsilon0 >= MIN_EPSILON0:
        raise ValueError(f"epsilon0={epsilon0!r}: the l2 mechanism needs epsilon0 >= {MIN_EPSILON0:g}")
    return math.tanh(epsilon0 / 2) - COIN_MARGIN


def _flips(keys: jax.Array, radii: jax.Array, epsilon0: float) -> jax.Array:
    """-1 with probability (1 - radius bias)/2, else +1, shape (m, 1) like radii."""
    chances = 0.5 * (1.0 - radii * _coin_bias(epsilon0))
    return jnp.where(jax.vmap(jax.random.bernoulli)(keys, chances), -1.0, 1.0)


def _cholesky(gram: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Lower Cholesky factor of a small matrix, and its inverse; not finite if not positive definite.

    Elimination on [gram | identity] leaves [factor^T | inverse]. Much faster here than LAPACK, whose threads
    contend with XLA's on matrices this small.
    """
    m = len(gram)
    rows = jnp.arange(m, dtype=jnp.int32)

    def eliminate(j: jax.Array, table: jax.Array) -> jax.Array:
        pivot = table[j] / jnp.sqrt(table[j, j])
        below = jnp.where(rows > j, table[:, j], jnp.zeros((m,), jnp.float32)) / jnp.sqrt(table[j, j])
        return (table - below[:, None] * pivot[None, :]).at[j].set(pivot)

    start = jnp.concatenate([gram, jnp.eye(m, dtype=jnp.float32)], axis=1)
    table = jax.lax.fori_loop(0, m, eliminate, start)
    return jnp.tril(table[:, :m].T), table[:, m:]


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

    _legal = legal(clip_norm=(_validate.real, *CLIP_NORMS), simulate=(_validate.choice, SIMULATE))

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
        """See `gaussian_messages`."""
        return gaussian_messages(keys, clipped, self.clip_norm, self.noise_multiplier)

    def partial_sum(
        self, key: jax.Array, position: jax.Array, clipped: ClientVectors, present: jax.Array
    ) -> jax.Array:
        """Sum of the clipped updates, without noise if the noise is drawn once."""
        if self.simulate == "messages":
            return super().partial_sum(key, position, clipped, present)
        return clipped.combine(present.astype(jnp.float32))

    def noise_of_sum(self, key: jax.Array, dimension: int, count: jax.Array) -> jax.Array | None:
        """See `gaussian_sum_noise`."""
        if self.simulate == "messages":
            return None
        return gaussian_sum_noise(key, dimension, self.clip_norm, self.noise_multiplier, count)


@register_mechanism(L2Mechanism)
@register_mechanism(OneBit)
@register_mechanism(PureLDP)
class L2Messages(Mechanism):
    """Messages on a sphere (Duchi, Jordan, Wainwright); sums by groups of 40 clients, see `l2_sum`."""

    randomizer: PureLDP | OneBit | L2Mechanism

    groups_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # At epsilon0 = 0 no unbiased message has a finite norm; float32 coins need a positive minimum.
        epsilon0 = _validate.real(MIN_EPSILON0, MAX_EPSILON0, epsilon0=self.randomizer.epsilon0)
        least, distance = math.tanh(0.5 * epsilon0), self.randomizer.total_variation
        if distance < least * (1.0 - 1e-9):
            raise _validate.error(f"at least {least!r}, which the l2 mechanism has", total_variation=distance)

    def __str__(self) -> str:
        return f"l2 mechanism, epsilon0 = {self.randomizer.epsilon0:g} a message"

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of one coordinate in high dimension, see `l2_multiplier`."""
        return l2_multiplier(self.randomizer.epsilon0)

    def messages(self, keys: jax.Array, clipped: jax.Array) -> jax.Array:
        """See `l2_messages`."""
        return l2_messages(keys, clipped, self.clip_norm, self.randomizer.epsilon0)

    def partial_sum(
        self, key: jax.Array, position: jax.Array, clipped: ClientVectors, present: jax.Array
    ) -> jax.Array:
        """Sum over groups of clients, in the exact law of the sum of their messages."""
        if self.simulate == "messages":
            return super().partial_sum(key, position, clipped, present)
        keys = fold(key, position // GROUP + jnp.arange(len(clipped) // GROUP, dtype=jnp.int32))
        return l2_sum(keys, clipped, present, self.clip_norm, self.randomizer.epsilon0)

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
