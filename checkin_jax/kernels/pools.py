"""Laws of check-ins at unequal rates for the kernels of `check_in` and `binary_response` (docs/theory_rates.md).

`pool_law` is T1h's, jitted; the instances L1h are made on the host, numpy float64, from the law of a sum of independent
indicators (`poisson_binomial`), which is known from both sides.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from checkin_jax.kernels import binary_response, binomial, check_in, host, poisson_binomial


@jax.jit
def pool_law(pool: Array, weight: Array, theta: Array, rate: Array, epsilon0: Array) -> check_in.Law:
    """T1h: the target comes with probability `rate`, each of `pool` other clients with probability theta.

    pool: n' >= 0, whole, [parts]. weight: of the parts, a public label. theta: in (0, 1). rate: g in (0, 1].
    An absent draw counts alpha = (1-g)/(1-theta), one of the labels beta = g/theta times what it counts in T1.
    """
    p = jnp.exp(epsilon0)
    zero = jnp.zeros_like(pool)
    neither = theta * jnp.expm1(epsilon0) / (p + 1.0)
    absent = check_in.share(1.0 - theta, neither)
    ratio = (1.0 - rate) * theta / ((1.0 - theta) * rate)
    return check_in.Law(
        pool + 1.0,
        zero + 2.0 * theta / (p + 1.0),
        zero + absent,
        zero,
        zero,
        zero + rate / theta,
        weight,
        zero + ratio,
    )


class Runs:
    """A law cut into runs of its values, with bounds on their masses and on those of the runs one lower.

    first, last: values of the sum plus one, [runs]. lower, upper: of the sum in [first - 1, last - 1].
    next_upper, next_lower: of the sum in [first, last].
    """

    def __init__(self, law: poisson_binomial.Law, buckets: int) -> None:
        size, stride = law.lower.size, law.stride
        mean = float(law.run_upper @ np.arange(float(size)))
        deviation = np.sqrt(max(float(law.run_upper @ np.square(np.arange(float(size)) - mean)), 1e-300))
        ends = binomial.edges(host(0.0), host(size - 1.0), host(mean), host(deviation), buckets)
        start, stop = (np.asarray(end).astype(np.int64) for end in ends)
        kept = (stop >= start) & (start < size)
        start, stop = start[kept], np.minimum(stop[kept], size - 1)
        self.lower = np.add.reduceat(law.run_lower, start)
        self.upper = np.add.reduceat(law.run_upper, start)
        self.first = law.first + stride * start + 1.0
        self.last = np.append(self.first[1:] - 1.0, law.last + 1.0)
        # One up: the value after the last comes in, the first goes.
        entering = np.append(law.upper[start[1:]], law.above)
        self.next_upper = np.maximum(self.upper + entering - law.lower[start], 0.0)
        entering = np.append(law.lower[start[1:]], 0.0)
        self.next_lower = np.maximum(self.lower + entering - law.upper[start], 0.0)


def _filled(values: np.ndarray, size: int, value: float = 0.0) -> np.ndarray:
    return np.pad(values, (0, size - values.size), constant_values=value)


def ternary_buckets(
    law: poisson_binomial.Law, special: float, rate: float, epsilon0: float, buckets: int
) -> check_in.Buckets:
    """L1h, 3-ary randomized response, all others at a third record: a mixture below the round; one ratio a label.

    law: of how many of the others show one of the two special labels. special: 2 / (p + 2). rate: g in (0, 1].

    N - 1 has that law, with weight g special Pr[T = N-1]; y has mean ((1-g)/g + (1-special)/p) / special times
    Pr[T = N] / Pr[T = N-1], since sum_j r_j/(1 + r_j (z-1)) G(z) = G'(z) for indicators of probabilities r_j.
    """
    runs = Runs(law, buckets)
    per_step = ((1.0 - rate) / rate + (1.0 - special) * np.exp(-epsilon0)) / special * (1.0 + 1e-14)
    seen = runs.lower > 0
    ratio = np.where(seen, per_step * runs.next_upper / np.where(seen, runs.lower, 1.0), 0.0)
    weight = np.where(np.isfinite(ratio), rate * special * runs.lower * (1.0 - 1e-14), 0.0)
    ratio = np.where(weight > 0, ratio, 0.0)
    return check_in.Buckets(
        host(_filled(runs.last, buckets, 1.0)),
        host(_filled(ratio, buckets)[:, None]),
        host(_filled(weight, buckets)[:, None]),
        host(0.0),
    )


def binary_messages(
    law: poisson_binomial.Law, rate: float, epsilon0: float, buckets: int
) -> binary_response.Messages:
    """L1h, binary randomized response, all others at the record x': a mixture over how many messages there are.

    law: of how many of the others check in. rate: g in (0, 1]. The target is one of k messages with probability
    q_k = g Pr[S = k-1] / Pr[K = k], kappa = (1 - 1/p) q_k / k; in a run of k its mean serves (Jensen), from below.
    """
    runs = Runs(law, buckets)
    most = (1.0 - rate) * runs.next_upper + rate * runs.upper
    share = np.where(most > 0, rate * runs.lower / np.where(most > 0, most, 1.0), 0.0)
    kappa = -np.expm1(-epsilon0) * np.minimum(share, 1.0) / runs.last * (1.0 - 1e-14)
    weight = ((1.0 - rate) * runs.next_lower + rate * runs.lower) * (1.0 - 1e-14)
    kappa = np.where(kappa > 0, kappa, 1e-300)
    return binary_response.Messages(
        host(_filled(runs.first, buckets, 1.0)),
        host(_filled(weight, buckets)),
        host(_filled(kappa, buckets, 1e-300)),
    )
