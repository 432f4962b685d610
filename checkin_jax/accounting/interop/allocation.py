"""Random allocation: each record is used in k of t noisy steps, uniformly chosen; trusted server, central noise."""

from __future__ import annotations

import dataclasses
from typing import Any

import dp_accounting
from dp_accounting import DpEvent, NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from checkin_jax import _validate
from checkin_jax._suggest import named
from checkin_jax.accounting.account import MIN_DELTA
from checkin_jax.accounting.guarantee import relation_of
from checkin_jax.accounting.interop.accountant import CheckInAccountant
from checkin_jax.accounting.interop.allocated_epochs import (
    LEAST_NOISE,
    MOST_NOISE,
    RandomAllocationDpEvent,
    UnfinishedAllocationDpEvent,
    units_of,
)
from checkin_jax.accounting.interop.central_mechanisms import LEAST_RATE
from checkin_jax.accounting.interop.composed_guarantee import STOPPED, LedgerGuarantee
from checkin_jax.numerics.allocation_losses import MAX_SLOTS
from checkin_jax.protocols import MAX_ROUNDS, REPLACE
from checkin_jax.randomizers import KnownProfile


@named
def random_allocation(
    noise_multiplier: float | DpEvent | PrivacyLossDistribution | KnownProfile,
    num_steps: int,
    *,
    delta: float,
    neighboring_relation: str | NeighboringRelation,
    num_selected: int = 1,
    num_epochs: int = 1,
    unfinished_steps: int = 0,
    sampling_prob: float = 1.0,
) -> LedgerGuarantee:
    """Certified bracket for sampling by random allocation (balls and bins) with central noise.

    In each epoch every record is in `num_selected` of `num_steps` steps, uniformly chosen, independently of the others.
    A trusted server publishes each step: by default a sum with Gaussian noise. Steps may depend on all earlier ones.

    Theorem: under add-or-remove with num_selected = 1 and a step's pair (P, Q) the epoch's pair is (1-q) Q^t + (q/t)
    sum_i (P in step i) against Q^t [Feldman, Shenfeld 2026], attained if the step's pair is. num_selected = k > 1 is at
    most k units of one of t/k steps [Feldman, Shenfeld 2025; proof for adaptive steps in docs/theory_allocation.md, 6].
    Under replace-one each unit is bounded by two-steps (R2). A `CheckInAccountant` composes the events with others.

    Args:
      noise_multiplier: noise standard deviation over the largest norm of a record's value, in [1/12, 1e6]; or another
        step, as `event` of `RandomAllocationDpEvent`.
      num_steps: t, 1 to 1e9.
      delta: in [1e-300, 1].
      neighboring_relation: "add-or-remove-one" or "replace-one", or dp_accounting's; no default.
      num_selected: k, 1 to t.
      num_epochs: number of finished epochs; 0 only before an unfinished one.
      unfinished_steps: s, 0 to t - 1: steps of one more epoch, of a run that stops inside it. The stop must not depend
        on what the steps show. num_selected is then at most 10,000.
      sampling_prob: q in [1e-9, 1], the probability that a record takes part in an epoch, drawn anew in each (Poisson
        sampling before the allocation).

    Raises:
      TypeError, ValueError: with the argument, its value and its legal range.

    Examples:
      >>> import checkin_jax as cj
      >>> g = cj.random_allocation(1.0, 1_000, delta=1e-6, neighboring_relation="add-or-remove-one", num_epochs=10)
      >>> print(f"{g.lower:.3f} <= epsilon <= {g.epsilon:.3f}")
      0.540 <= epsilon <= 0.541
    """
    delta = _validate.real(MIN_DELTA, 1, delta=delta)
    relation = relation_of(neighboring_relation)
    step: Any = noise_multiplier
    if not isinstance(step, DpEvent | PrivacyLossDistribution | KnownProfile):
        step = dp_accounting.GaussianDpEvent(_validate.real(LEAST_NOISE, MOST_NOISE, noise_multiplier=step))
    steps = _validate.integer(1, MAX_SLOTS, num_steps=num_steps)
    selected = _validate.integer(1, steps, num_selected=num_selected)
    unfinished = _validate.integer(0, steps - 1, unfinished_steps=unfinished_steps)
    num_epochs = _validate.integer(0 if unfinished else 1, MAX_ROUNDS, num_epochs=num_epochs)
    prob = _validate.real(LEAST_RATE, 1, sampling_prob=sampling_prob)
    if selected * num_epochs > MAX_ROUNDS:
        raise ValueError(
            f"num_selected * num_epochs = {selected * num_epochs}: expected at most {MAX_ROUNDS}"
        )
    sums = RandomAllocationDpEvent(step, selected, steps)
    events = [(_sampled(sums, prob), num_epochs)] if num_epochs else []
    if unfinished and selected == 1:
        some = RandomAllocationDpEvent(step, 1, unfinished)
        events.append((_sampled(some, prob * unfinished / steps), 1))
    elif unfinished:
        events.append((_sampled(UnfinishedAllocationDpEvent(sums, unfinished), prob), 1))
    ledger = CheckInAccountant(
        NeighboringRelation.REPLACE_ONE if relation == REPLACE else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    for event, count in events:
        # A step without a bound is refused with its reason.
        units_of(event, relation)
        ledger.compose(event, count)
    g = ledger.guarantee(delta)
    if unfinished:
        g = dataclasses.replace(g, assumptions=tuple(dict.fromkeys((*g.assumptions, STOPPED))))
    return g


def _sampled(event: DpEvent, prob: float) -> DpEvent:
    return event if prob == 1.0 else dp_accounting.PoissonSampledDpEvent(prob, event)
