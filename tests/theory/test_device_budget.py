"""`DeviceBudget`: a device whose jobs are chosen by all that was seen, by enumeration (theory_filters.md, F3, F4)."""

import functools
import json
import math

import dp_accounting
import numpy as np
import pytest
from oracles import exact_rounds as exact
from oracles import krr

import checkin_jax as cj

TARGET = {"target_epsilon": 1.2, "target_delta": 0.02}
# Jobs: epsilon0, and the least number of honest messages of its batch.
JOBS = [(0.1, 1), (0.25, 1), (0.5, 1), (0.5, 3), (0.8, 3)]


def seen(job):
    """Laws of what is seen of a job if the device's bit is 0 and if it is 1; the others of a batch hold 1."""
    epsilon0, batch = job
    channel = np.array(krr.krr_channel(2, math.exp(epsilon0)))
    laws = [exact.histogram([*[channel[1]] * (batch - 1), channel[x]], [1.0] * batch) for x in range(2)]
    kept = laws[0] > 0
    return np.array([law[kept] for law in laws])


LAWS = {job: seen(job) for job in JOBS}
MESSAGES = {job: cj.PureLDP(epsilon0=job[0]) for job in JOBS}


@functools.cache
def fits(sent, job):
    """Whether a device that sent these jobs may send another one."""
    device = cj.DeviceBudget(**TARGET)
    for epsilon0, batch in sent:
        device.send(MESSAGES[epsilon0, batch], min_reports=batch)
    return device.may_send(MESSAGES[job], min_reports=job[1])


def everything_seen(policy, depth, sent=(), so_far=(1.0, 1.0)):
    """Pairs of probabilities of all that may be seen, the policy choosing each job by the likelihood ratio so far."""
    job = policy(so_far)
    if depth == 0 or not fits(sent, job):
        yield so_far
        return
    for masses in LAWS[job].T:
        after = tuple(np.multiply(so_far, masses))
        yield from everything_seen(policy, depth - 1, tuple(sorted([*sent, job])), after)


def policies():
    yield from ((lambda so_far, job=job: job) for job in JOBS)
    rng = np.random.default_rng(3)
    for _ in range(12):
        low, high = rng.uniform(-0.5, 1.0, 2)
        picks = [JOBS[i] for i in rng.integers(0, len(JOBS), 3)]
        yield lambda so_far, low=low, high=high, picks=picks: picks[
            int(np.searchsorted(sorted((low, high)), math.log(so_far[0] / so_far[1])))
        ]


def leak(pairs):
    p, q = np.array(list(pairs)).T
    assert p.sum() == pytest.approx(1.0)
    c = math.exp(TARGET["target_epsilon"])
    return max(np.maximum(a - c * b, 0.0).sum() for a, b in ((p, q), (q, p)))


def test_every_way_of_choosing_jobs_keeps_the_promise():
    leaks = [leak(everything_seen(policy, 6)) for policy in policies()]
    assert max(leaks) <= TARGET["target_delta"]
    assert max(leaks) > 0.0


def gaussian_delta(number, noise_multiplier, epsilon):
    """Exact delta of so many named Gaussian messages, a record moving each by two clip norms."""
    mu = 2.0 * math.sqrt(number) / noise_multiplier

    def normal(x):
        return 0.5 * math.erfc(-x / math.sqrt(2.0))

    return normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal(-mu / 2 - epsilon / mu)


def most_messages(device, message, **more):
    count = 0
    while device.may_send(message, count=count + 1, **more):
        count += 1
    return count


def test_as_many_messages_as_fit_and_no_more_by_the_exact_profile():
    device = cj.DeviceBudget(target_epsilon=2.0, target_delta=1e-6)
    message = cj.Gaussian(noise_multiplier=30.0)
    most = most_messages(device, message)
    assert gaussian_delta(most, 30.0, 2.0) <= 1e-6
    # The exact profile allows more, but not many times more.
    assert gaussian_delta(3 * most, 30.0, 2.0) > 1e-6


def test_the_own_coin_hides_nothing_that_was_sent():
    """A device that counts its messages as subsampled by its own coin, although it knows that it sent them."""
    device = cj.DeviceBudget(target_epsilon=2.0, target_delta=1e-6)
    by_coin = cj.ShuffledCheckIn(num_clients=1, check_in_prob=0.1)
    noise = cj.Gaussian(noise_multiplier=30.0)
    counted = float(cj.rdp(by_coin, noise, [device.order], view="local")[0])
    assert gaussian_delta(int(device.budget / counted), 30.0, 2.0) > 1e-6
    # Nor does a batch that is larger than what was said.
    batches = most_messages(device, cj.PureLDP(epsilon0=1.0), min_reports=50)
    assert batches > most_messages(device, cj.PureLDP(epsilon0=1.0))


def test_a_path_within_the_promise_is_no_filter():
    """The accountant's own figure of a path lets more pass: two jobs that it would allow exceed the device's budget."""
    device = cj.DeviceBudget(target_epsilon=1.0, target_delta=1e-6)
    message = cj.PureLDP(epsilon0=0.05)
    most = most_messages(device, message)
    device.send(message, count=most)
    assert device.ledger.get_epsilon(1e-6) < 1.0
    assert not device.may_send(message)


def test_budgets_are_kept_in_files():
    device = cj.DeviceBudget(target_epsilon=1.0, target_delta=1e-8)
    assert (device.spent, device.left) == (0.0, 1.0)
    first, second = cj.PureLDP(epsilon0=0.1), cj.PureLDP(epsilon0=1.0)
    device.send(first, count=3)
    device.send(second, min_reports=5_000)
    kept = json.loads(json.dumps(device.state_dict()))
    again = cj.DeviceBudget(target_epsilon=1.0, target_delta=1e-8, state=kept)
    assert again.spent == device.spent > 0.0
    assert again.left == pytest.approx(1.0 - device.spent)
    assert device.order == again.order
    # Another order was fixed for other targets, larger ones too: what passed by either is within neither.
    for epsilon, delta, told in [
        (2.0, 1e-8, "target_epsilon=2.0: expected 1.0"),
        (1.0, 1e-7, "target_delta=1e-07"),
    ]:
        with pytest.raises(ValueError, match=told):
            cj.DeviceBudget(target_epsilon=epsilon, target_delta=delta, state=kept)
    with pytest.raises(ValueError, match=r"expected one made by `DeviceBudget.state_dict`"):
        cj.DeviceBudget(target_epsilon=1.0, target_delta=1e-8, state=device.ledger.state_dict())
    by_coin = cj.to_event(cj.ShuffledCheckIn(num_clients=9, check_in_prob=0.1), first)
    for event in (by_coin, dp_accounting.GaussianDpEvent(9.0), dp_accounting.NonPrivateDpEvent()):
        foreign = cj.CheckInAccountant().compose(event)
        with pytest.raises(ValueError, match="expected messages that a DeviceBudget let pass"):
            cj.DeviceBudget(**TARGET, state={**TARGET, "ledger": foreign.state_dict()})


def device():
    return cj.DeviceBudget(**TARGET)


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (
            lambda: cj.DeviceBudget(target_epsilon=1e-9, target_delta=1e-300),
            ValueError,
            "expected a larger one at target_delta=1e-300",
        ),
        (lambda: device().may_send(MESSAGES[JOBS[0]], min_reports=0), ValueError, "min_reports=0"),
        (lambda: device().send(cj.PureLDP(epsilon0=9.0)), ValueError, "of which 100% is left"),
        (lambda: device().may_send(3), TypeError, "randomizer=3"),
        (
            lambda: device().may_send(cj.ApproximateLDP(epsilon0=1.0, delta0=1e-9)),
            TypeError,
            "pure local privacy",
        ),
    ],
)
def test_refusals(call, error, told):
    with pytest.raises(error, match=told):
        call()
