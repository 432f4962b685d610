"""Training of fleets whose check-in rates differ, and by a log of who is available: what ran is what is stated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import checkin_jax as cj
from checkin_jax.training.schedules.schedule import schedule_of

# Ten clients of each of three rates.
FLEET = cj.Rates([0.05, 0.2, 0.6], counts=[10, 10, 10])


def two_clouds():
    """A linear model and thirty records."""
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=30).astype(np.int32)
    place = (rng.normal(size=(30, 2)) + 4.0 * (label[:, None] - 0.5)).astype(np.float32)
    records = {"place": place, "label": label}

    def loss(parameters, record):
        return -jax.nn.log_softmax(record["place"] @ parameters)[record["label"]]

    def metrics(parameters, record):
        return {"accuracy": (jnp.argmax(record["place"] @ parameters) == record["label"]).astype(jnp.float32)}

    model = cj.training.Model(init=lambda key: jnp.zeros((2, 2), jnp.float32), loss=loss, metrics=metrics)
    return model, cj.training.Dataset(records=records, test=records, name="two clouds")


def trained(protocol, folder, **changes):
    run = cj.training.PrivateRun(
        protocol=protocol, randomizer=cj.Gaussian(noise_multiplier=2.0), clip_norm=1.0, delta=1e-3
    )
    return cj.training.train(
        run, *two_clouds(), folder, optimizer=optax.sgd(0.5), eval_every=4, seed=3, **changes
    )


def test_rounds_are_made_by_those_whom_the_schedule_draws(tmp_path):
    for protocol in (
        cj.ShuffledCheckIn(num_clients=30, check_in_prob=FLEET, num_rounds=8),
        cj.from_availability([30, 10, 20, 5] * 2, 0.3),
        cj.FixedWindow(num_clients=30, num_slots=8, check_in_prob=FLEET, minibatch=2, num_epochs=2),
        cj.AveragedUpdates(num_clients=30, num_slots=4, check_in_prob=FLEET, num_epochs=2),
    ):
        folder = tmp_path / type(protocol).__name__
        report = trained(protocol, folder)
        read = cj.training.read(folder)
        assert read.run.protocol == protocol
        draw = schedule_of(protocol).draw(3)
        assert [line["check_ins"] for line in read.metrics] == [len(draw(t)) for t in range(8)]
        for view, found in report.guarantees.items():
            again = cj.account(protocol, cj.Gaussian(noise_multiplier=2.0), delta=1e-3, view=view)
            assert (found.lower, found.epsilon) == (again.lower, again.epsilon)


@pytest.mark.parametrize(
    "protocol",
    [
        cj.ShuffledCheckIn(num_clients=30, check_in_prob=FLEET, num_rounds=8),
        cj.from_availability([30, 10, 20, 5] * 2, 0.3),
    ],
    ids=["rates", "log"],
)
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path, protocol):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    trained(protocol, whole)

    class Killed(Exception):
        pass

    def kill(line):
        if line["round"] == 6:
            raise Killed

    with pytest.raises(Killed):
        trained(protocol, killed, on_round=kill, checkpoint_every=3)
    trained(protocol, killed, checkpoint_every=3, resume=True)
    for name in ("metrics.jsonl", "parameters.npz"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()


def test_the_audit_of_a_fleet_passes_and_finds_out_who_takes_the_mean_rate_for_all():
    fleet = cj.Rates([0.02, 0.9], counts=[5, 1])
    run = cj.training.PrivateRun(
        protocol=cj.ShuffledCheckIn(num_clients=6, check_in_prob=fleet, num_rounds=1),
        randomizer=cj.Gaussian(noise_multiplier=0.3),
        clip_norm=1.0,
    )
    found = cj.auditing.audit(run, runs=300, seed=1, views=("aggregate",))
    assert found.passed
    assert max(finding.lower for finding in found.findings) > 1.0

    # An accountant that takes the mean rate for all is found out by the fastest client.
    def mean_rate(protocol, randomizer, **how):
        coins = protocol.coins
        equal = cj.ShuffledCheckIn(
            num_clients=6, check_in_prob=coins.expected_check_ins / 6, num_rounds=protocol.num_rounds
        )
        return cj.account(equal, randomizer, **how)

    assert not cj.auditing.audit(run, runs=300, seed=1, views=("aggregate",), account_fn=mean_rate).passed
