"""What a client does to its gradient before it leaves the device, and exact shortcuts for sums of messages.

Trust model: a client trusts its own device only. `*_messages` draws every client's message; `*_sum` draws
the sum of the messages from exactly the same distribution without drawing them one by one, which is what
an aggregating server would see. All functions are pure, float32, need an explicit key and treat rows as
clients. As everywhere in floating point, the promised privacy is that of the real-valued mechanism.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

# Clipped norms may exceed the target by rounding, up to 1.5e-7 relative; aiming lower keeps them below C.
CLIP_MARGIN = 1e-6
# A float32 coin is off by up to 2.4e-7; taking this off its bias keeps the rarer side at least as likely as
# epsilon0 demands. The message norm uses the reduced bias too, so messages stay unbiased.
COIN_MARGIN = 5e-7
MIN_EPSILON0 = 1e-5
MAX_INVERSE_NORM_SQUARED = 1000.0


def clip(gradients: jax.Array, clip_norm: float) -> jax.Array:
    """Scales each row down to norm at most clip_norm (1 - 1e-6); the result's true norm is below clip_norm.

    A row whose norm is not finite (NaN, infinity, or overflow of its square) becomes zero: one client's
    broken gradient must not exceed the sensitivity or poison the sum.

    Args:
      gradients: (m, d) float32.
      clip_norm: C > 0.
    """
    norms = _norms(gradients)
    factors = jnp.minimum(1.0, clip_norm * (1.0 - CLIP_MARGIN) / jnp.maximum(norms, 1e-30))
    return jnp.where(jnp.isfinite(norms), gradients * factors, jnp.zeros_like(gradients))


def sum_present(present: jax.Array, rows: jax.Array) -> jax.Array:
    """The sum of the rows (m, d) whose flag in `present` (m,) is set, in full float32.

    Full precision matters: the reduced one that accelerators use by default would let a row count for
    more than its clipped norm.
    """
    return _matmul(present.astype(jnp.float32), rows)


def gaussian_messages(
    keys: jax.Array, clipped: jax.Array, clip_norm: float, noise_multiplier: float
) -> jax.Array:
    """Each client's message: its clipped gradient plus N(0, (noise_multiplier clip_norm)^2 I), own key each.

    Args:
      keys: (m,) one key a client.
      clipped: (m, d) float32, rows of norm at most clip_norm.
    """
    return clipped + (noise_multiplier * clip_norm) * _normals(keys, clipped.shape[-1])


def gaussian_sum_noise(
    key: jax.Array, dimension: int, clip_norm: float, noise_multiplier: float, count: jax.Array
) -> jax.Array:
    """The noise in the sum of `count` Gaussian messages, exactly: N(0, count (z C)^2 I), one draw.

    Args:
      count: scalar, the realised number of messages (sensitive where the count is); 0 gives zeros.

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
    """Each client's epsilon0-LDP message on the sphere of norm B (Duchi, Jordan, Wainwright), own key each.

    The message is B v with v uniform on the half sphere <v, g> >= 0 with probability
    (1 + |g| tanh(epsilon0/2) / C) / 2 and on the other half else: the direction kept or flipped, then the
    right or the wrong half, in one coin. Densities of two gradients differ by a factor of at most
    (1 + tanh) / (1 - tanh) = e^epsilon0. Unbiased: the mean is the clipped gradient. References: Duchi,
    Jordan, Wainwright, arXiv 1604.02390; Erlingsson et al. 2020, arXiv 2001.03618.

    Args:
      keys: (m,) one key a client.
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
    key: jax.Array, clipped: jax.Array, present: jax.Array, clip_norm: float, epsilon0: float
) -> jax.Array:
    """The sum of the messages of a group, distributed exactly as `sum(l2_messages(...))`, with d normals.

    A message is B s_i x_i with x_i uniform on the sphere and s_i a sign that depends on x_i only through
    <x_i, u_i>. Split R^d into the span of u_1..u_m and its complement. Inside, the m coordinates of each
    x_i are drawn (m normals, and a chi-square for the squared norm outside). Outside, the pieces s_i x_i
    have known norms rho_i and independent uniform directions, so their sum has a uniform direction and a
    norm with R_k^2 = R_(k-1)^2 + rho_k^2 + 2 R_(k-1) rho_k tau_k, where tau_k is one coordinate of a uniform
    unit vector of dimension d - m.

    The basis of the span is implicit, through the Cholesky factor of the Gram matrix; its deviation from
    orthonormality in float32 is about 1e-7 times the matrix's condition number. Where that could pass 1e-4
    (equal or zero gradients, d < m + 2) the messages are drawn one by one instead. That choice depends on
    the gradients only and both ways have the same law.

    Args:
      key: one key for the group.
      clipped: (m, d) float32, rows of norm at most clip_norm.
      present: (m,) bool; rows with False send nothing.

    Returns:
      (d,) float32.

    Raises:
      ValueError: epsilon0 below 1e-5.
    """
    m, d = clipped.shape

    def one_by_one() -> jax.Array:
        messages = l2_messages(jax.random.split(key, m), clipped, clip_norm, epsilon0)
        return sum_present(present, messages)

    if d < m + 2:
        return one_by_one()
    units, radii = _directions(clipped, clip_norm)
    factor, inverse = _cholesky(_matmul(units, units.T))
    # The squared Frobenius norm bounds 1 / (smallest eigenvalue); NaN, from a failed factor, compares false.
    well_conditioned = jnp.sum(inverse * inverse) < MAX_INVERSE_NORM_SQUARED

    def together() -> jax.Array:
        coin_key, inside_key, norm_key, angle_key, outside_key = jax.random.split(key, 5)
        flips = _flips(jax.random.split(coin_key, m), radii, epsilon0)
        # Coordinates of u_i in the orthonormal rows of basis = inverse @ units: row i of the factor.
        alpha = jax.random.normal(inside_key, (m, m), jnp.float32)
        outside_squared = jax.random.chisquare(norm_key, float(d - m), (m, 1), jnp.float32)
        lengths = jnp.sqrt(jnp.sum(alpha * alpha, axis=-1, keepdims=True) + outside_squared)
        signs = flips * jnp.where(jnp.sum(alpha * factor, axis=-1, keepdims=True) >= 0, 1.0, -1.0)
        weights = present[:, None].astype(jnp.float32) * signs / lengths
        inside = jnp.sum(weights * alpha, axis=0)

        rho = jnp.abs(weights) * jnp.sqrt(outside_squared)
        radius = _sum_norm(angle_key, rho[:, 0], d - m)
        normal = jax.random.normal(outside_key, (d,), jnp.float32)
        along = _matmul(inverse.T, _matmul(inverse, _matmul(units, normal)))
        across = normal - _matmul(along, units)
        across = across * (radius / jnp.sqrt(jnp.sum(across * across)))
        within = _matmul(_matmul(inverse.T, inside), units)
        return l2_message_norm(d, clip_norm, epsilon0) * (within + across)

    return jax.lax.cond(well_conditioned, together, one_by_one)


def central_limit_multiplier(epsilon0: float) -> float:
    """Standard deviation over C of one coordinate of an l2 message as d grows: sqrt(pi/2) coth(epsilon0/2).

    For the central-limit SIMULATION of the sum of k messages, N(sum of gradients, k (multiplier C)^2 I):
    not the mechanism itself and not a randomizer of any privacy parameter.

    Raises:
      ValueError: epsilon0 below 1e-5.
    """
    return math.sqrt(math.pi / 2) / _coin_bias(epsilon0)


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """Matrix product in full float32 on every device."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


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
    """The lower Cholesky factor of a small matrix, and its inverse; not finite where there is none.

    Elimination on [gram | identity] leaves [factor^T | inverse]. Much faster than LAPACK here, whose
    threads contend with XLA's on matrices this small.
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


def _sum_norm(key: jax.Array, rho: jax.Array, dimension: int) -> jax.Array:
    """Norm of a sum of vectors of norms rho with independent uniform directions in `dimension` >= 2."""
    normal_key, rest_key = jax.random.split(key)
    normal = jax.random.normal(normal_key, rho.shape, jnp.float32)
    rest = jax.random.chisquare(rest_key, float(dimension - 1), rho.shape, jnp.float32)
    tau = normal / jnp.sqrt(normal * normal + rest)

    def add(radius: jax.Array, piece: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        rho_k, tau_k = piece
        squared = radius * radius + rho_k * rho_k + 2.0 * radius * rho_k * tau_k
        return jnp.sqrt(jnp.maximum(squared, 0.0)), None

    return jax.lax.scan(add, jnp.zeros((), jnp.float32), (rho, tau))[0]
