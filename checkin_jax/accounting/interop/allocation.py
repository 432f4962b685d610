"""Random allocation: each record is used in k of t noisy steps, uniformly chosen; trusted server, central noise."""

from __future__ import annotations

import dp_accounting
from dp_accounting import DpEvent, NeighboringRelation

from checkin_jax import _validate
from checkin_jax._suggest import named
from checkin_jax.accounting.account import MIN_DELTA
from checkin_jax.accounting.guarantee import relation_of
from checkin_jax.accounting.interop.accountant import CheckInAccountant
from checkin_jax.accounting.interop.allocated_epochs import (
    LEAST_NOISE,
    MOST_NOISE,
    RandomAllocationDpEvent,
    epoch_of,
)
from checkin_jax.accounting.interop.central_bounds import LEAST_RATE
from checkin_jax.accounting.interop.composed_guarantee import LedgerGuarantee
from checkin_jax.numerics.allocation_losses import MAX_SLOTS
from checkin_jax.protocols import MAX_ROUNDS, REPLACE


@named
def random_allocation(
    noise_multiplier: float | DpEvent,
    num_steps: int,
    *,
    delta: float,
    neighboring_relation: str | NeighboringRelation,
    num_selected: int = 1,
    num_epochs: int = 1,
    sampling_prob: float = 1.0,
) -> LedgerGuarantee:
    """Certified bracket for sampling by random allocation (balls and bins) with central noise.

    In each epoch every record is in `num_selected` of `num_steps` steps, uniformly chosen, independently of the others.
    A trusted server publishes each step: by default a sum with Gaussian noise. Steps may depend on all earlier ones.
    `CheckInAccountant` composes epochs (`RandomAllocationDpEvent`) with other events.

    Theorem: under add-or-remove with num_selected = 1 and a step's pair (P, Q) the epoch's pair is (1-q) Q^t + (q/t)
    sum_i (P in step i) against Q^t [Feldman, Shenfeld 2026], attained if the step's pair is. num_selected = k > 1 is at
    most k units of one of t/k steps [Feldman, Shenfeld 2025; proof for adaptive steps in docs/theory_allocation.md, 6].
    Under replace-one each unit is bounded by two-steps (R2).

    Args:
      noise_multiplier: noise standard deviation over the largest norm of a record's value, in [1/12, 1e6]; or another
        step, as `event` of `RandomAllocationDpEvent`.
      num_steps: t, 1 to 1e9.
      delta: in [1e-300, 1].
      neighboring_relation: "add-or-remove-one" or "replace-one", or dp_accounting's; no default.
      num_selected: k, 1 to t.
      num_epochs: number of epochs.
      sampling_prob: q in [1e-9, 1], the probability that a record takes part in an epoch, drawn anew in each (Poisson
        sampling before the allocation); 1 if num_selected is above 1.

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range.

    Examples:
      >>> import checkin_jax as cj
      >>> g = cj.random_allocation(1.0, 1_000, delta=1e-6, neighboring_relation="add-or-remove-one", num_epochs=10)
      >>> print(f"{g.lower:.3f} <= epsilon <= {g.epsilon:.3f}")
      0.540 <= epsilon <= 0.541
    """
    delta = _validate.real(MIN_DELTA, 1, delta=delta)
    replaced = relation_of(neighboring_relation) == REPLACE
    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    step = noise_multiplier
    if not isinstance(step, DpEvent):
        step = dp_accounting.GaussianDpEvent(_validate.real(LEAST_NOISE, MOST_NOISE, noise_multiplier=step))
    steps = _validate.integer(1, MAX_SLOTS, num_steps=num_steps)
    selected = _validate.integer(1, steps, num_selected=num_selected)
    num_epochs = _validate.integer(1, MAX_ROUNDS, num_epochs=num_epochs)
    if selected * num_epochs > MAX_ROUNDS:
        raise ValueError(
            f"num_selected * num_epochs = {selected * num_epochs}: expected at most {MAX_ROUNDS}"
        )
    event: DpEvent = RandomAllocationDpEvent(step, selected, steps)
    prob = _validate.real(LEAST_RATE, 1, sampling_prob=sampling_prob)
    if prob < 1.0:
        event = dp_accounting.PoissonSampledDpEvent(prob, event)
    epoch_of(event)  # a step without a bound is refused with the reason alone
    return CheckInAccountant(relation).compose(event, num_epochs).guarantee(delta)
