"""Training of fleets whose check-in rates differ, and by a log of who is available: what ran is what is stated."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import jsonschema
import optax
from stand_in import quick_account, two_clouds

import checkin_jax as cj
from checkin_jax.reports import render
from checkin_jax.training.budget import budget_of
from checkin_jax.training.reports import run_page
from checkin_jax.training.reports.run_page import of_run
from checkin_jax.training.schedules import schedule_of

# What takes longest is left out.
FAST = functools.partial(cj.account, bounds="fast")
# Ten clients of each of three rates.
FLEET = cj.Rates([0.05, 0.2, 0.6], counts=[10, 10, 10])


def trained(protocol, folder, account_fn=FAST):
    run = cj.training.PrivateRun(
        protocol=protocol, randomizer=cj.Gaussian(noise_multiplier=2.0), clip_norm=1.0, delta=1e-3
    )
    return cj.training.train(
        run,
        *two_clouds(30),
        folder,
        optimizer=optax.sgd(0.5),
        eval_every=4,
        seed=3,
        account_fn=account_fn,
    )


def test_rounds_are_made_by_those_whom_the_schedule_draws(tmp_path):
    for protocol in (
        cj.ShuffledCheckIn(num_clients=30, check_in_prob=FLEET, num_rounds=8),
        cj.from_availability([30, 10, 20, 5] * 2, 0.3),
        cj.FixedWindow(num_clients=30, num_slots=8, check_in_prob=FLEET, minibatch=2, num_epochs=2),
        cj.AveragedUpdates(num_clients=30, num_slots=4, check_in_prob=FLEET, num_epochs=2),
    ):
        folder = tmp_path / type(protocol).__name__
        report = trained(protocol, folder, quick_account)
        read = cj.training.read(folder)
        assert read.run.protocol == protocol
        draw = schedule_of(protocol).draw(3)
        assert [line["check_ins"] for line in read.metrics] == [len(draw(t)) for t in range(8)]
        for view, found in report.guarantees.items():
            again = quick_account(protocol, cj.Gaussian(noise_multiplier=2.0), delta=1e-3, view=view)
            assert (found.lower, found.epsilon) == (again.lower, again.epsilon)


def test_all_that_is_written_states_epsilon_by_rate_the_fastest_client_first(tmp_path):
    protocol = cj.ShuffledCheckIn(num_clients=30, check_in_prob=FLEET, num_rounds=8)
    folder = tmp_path / "run"
    report = trained(protocol, folder)
    rates = [0.6, 0.2, 0.05]

    def accounted(view, rounds=8):
        g = FAST(protocol.repeated(rounds), cj.Gaussian(noise_multiplier=2.0), delta=1e-3, view=view)
        return [(row.client_rate, row.lower, row.epsilon) for row in reversed(g.by_rate(rates))]

    assert set(report.by_rate) == set(report.guarantees) == {"local", "messages", "aggregate"}
    for view, rows in report.by_rate.items():
        assert [tuple(row) for row in rows] == accounted(view)
        assert rows[0].epsilon == report.guarantees[view].epsilon > rows[1].epsilon > rows[2].epsilon
        stored = json.loads((folder / "report.json").read_text())["epsilon_by_rate"][view]
        assert [tuple(row.values()) for row in stored] == [tuple(row) for row in rows]
    assert "  by rate    clients who check in at 0.6 or less: " in str(report)
    assert f"the fastest client is expected to send {8 * 0.6:.4g}" in str(report)
    # Metrics, budget, statement and page say the same.
    read = cj.training.read(folder)
    evaluated = [line for line in read.metrics if "epsilon" in line]
    assert [line["round"] for line in evaluated] == [4, 8]
    assert [line["epsilon"] for line in evaluated] == [accounted("messages", n)[0][2] for n in (4, 8)]
    budget = budget_of(read, FAST)
    assert [tuple(row) for row in budget.by_rate] == accounted("messages")
    _, _, told = str(budget).partition("  spent in view 'messages':\n  by rate    clients who")
    assert told.count(" or less: ") == 3
    stated = render.plain(of_run(read, FAST), attack=False)
    for each in stated["guarantees"]:
        assert [tuple(row.values()) for row in each["by_rate"]] == accounted(each["view"])
    schema = json.loads((Path(__file__).parents[2] / "docs" / "statement.schema.json").read_text())
    jsonschema.validate(stated, schema)
    assert render.as_text(stated).count("Clients of check-in rates up to 0.05: epsilon at most") == 3
    page = run_page.build(read, FAST)
    assert "Epsilon of each client" in page
    assert page.count("<svg") == page.count("</svg>") >= 4


def test_where_all_have_one_rate_no_table_by_rate_is_made(tmp_path):
    report = trained(cj.from_availability([30, 10] * 4, 0.3), tmp_path / "run", quick_account)
    assert report.by_rate == {}
    assert report.as_dict()["epsilon_by_rate"] == {}
    assert "a client is expected to send" in str(report)


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
        coins = protocol.unequal_rates
        equal = cj.ShuffledCheckIn(
            num_clients=6, check_in_prob=coins.expected_check_ins / 6, num_rounds=protocol.num_rounds
        )
        return cj.account(equal, randomizer, **how)

    assert not cj.auditing.audit(run, runs=300, seed=1, views=("aggregate",), account_fn=mean_rate).passed
