"""`checkin plan`: the numbers of `account` and `calibrate`, and one line for every way in which a plan can be wrong."""

import contextlib
import json
import re

import pytest

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax._rounding import up

FLEET = "[fleet]\navailable = [2000, 1000]\ncheck_in_prob = 0.05\ndrop_out_prob = 0.1\ncycles = 3\n"
TARGET = "[target]\nepsilon = 0.5\ndelta = 1e-5\n"
MESSAGES = "[[message]]\nepsilon0 = 1.0\n[[message]]\nmechanism = 'l2'\n[[message]]\n"
RUN = cj.from_availability([2000, 1000] * 3, coin=0.05, drop_out_prob=0.1)


@pytest.fixture
def planned(monkeypatch, tmp_path, capsys):
    """Runs a plan; its output."""
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)

    def run(text: str, *more: str) -> str:
        (tmp_path / "plan.toml").write_text(text)
        cli.main(["plan", str(tmp_path / "plan.toml"), *more])
        return capsys.readouterr().out

    return run


def test_a_delta_that_is_too_large_has_no_tier(planned, tmp_path, capsys):
    planned(FLEET + TARGET.replace("1e-5", "5e-4") + "[[message]]\nepsilon0 = 0.1\n", "--bounds", "fast")
    cli.main(["statement", str(tmp_path / "plan.toml")])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Delta is not below one over the number of clients: no tier of [PHK23] applies." in shown
    assert "in the tiers of" not in shown


def test_a_plan_warns_of_a_delta_that_is_too_large(planned):
    text = planned(
        FLEET + TARGET.replace("1e-5", "1e-2") + "[[message]]\nepsilon0 = 1.0\n", "--bounds", "fast"
    )
    (warned,) = [line for line in text.splitlines() if "1/num_clients" in line]
    assert warned.startswith("note: delta = 0.01 is not below 1/num_clients = 0.0005")


def test_a_plan_says_what_the_accountant_says(planned):
    found = json.loads(planned(FLEET + TARGET + MESSAGES, "--json", "--bounds", "fast"))
    first, second, third = found["messages"]
    for view in ("messages", "aggregate", "local"):
        exact = cj.account(RUN, cj.PureLDP(epsilon0=1.0), delta=1e-5, view=view, bounds="fast")
        assert (first[view]["epsilon"], first[view]["lower"]) == (exact.epsilon, exact.lower)
    asked = {"target_epsilon": 0.5, "delta": 1e-5, "bounds": "fast"}
    for row, kind, sign in ((second, cj.L2Mechanism, -1), (third, cj.Gaussian, 1)):
        found = cj.calibrate(RUN, kind, **asked)
        # What is printed is what was accounted: cut on the private side.
        value = row["messages"]["randomizer"][found.name]
        assert value == float(f"{value:.6g}")
        assert 0 <= sign * (value / found.value - 1) < 1e-5
        exact = cj.account(RUN, kind(**{found.name: value}), delta=1e-5, bounds="fast")
        assert row["messages"]["epsilon"] == exact.epsilon <= found.guarantee.epsilon
        assert row["met"]
    assert first["met"] == (first["messages"]["epsilon"] <= 0.5)
    (best,) = json.loads(planned(FLEET + TARGET + "[[message]]\nepsilon0 = 1.0\n", "--json"))["messages"]
    exact = cj.account(RUN, cj.PureLDP(epsilon0=1.0), delta=1e-5)
    assert best["messages"]["epsilon"] == exact.epsilon < first["messages"]["epsilon"]


def test_a_log_may_be_a_file_beside_the_plan(planned, tmp_path, capsys):
    (tmp_path / "day.csv").write_text("available,coin\n2000,0.05\n1000,0.05\n")
    listed = FLEET + TARGET + "[[message]]\nepsilon0 = 1.0\n"
    filed = listed.replace("[2000, 1000]", "'day.csv'").replace("check_in_prob = 0.05\n", "")
    assert planned(filed, "--bounds", "fast") == planned(listed, "--bounds", "fast")
    for text, told in (
        (filed.replace("day.csv", "night.csv"), "night.csv"),
        (listed.replace("[2000, 1000]", "'day.csv'"), "check_in_prob is given by day.csv"),
        (listed.replace("check_in_prob = 0.05\n", ""), "[fleet] needs check_in_prob"),
    ):
        with pytest.raises(SystemExit):
            planned(text)
        assert told in capsys.readouterr().err


def test_the_least_gaussian_noise_may_be_asked_for_by_name(planned):
    both = [
        planned(FLEET + TARGET + f"[[message]]\n{name}", "--bounds", "fast")
        for name in ("", "mechanism = 'gaussian'\n")
    ]
    assert both[0] == both[1]


def test_a_plan_to_read(planned):
    view = TARGET + "view = 'aggregate'\n"
    text = planned(
        FLEET + view + "[[message]]\nnoise_multiplier = 9.0\n[[message]]\nepsilon0 = 8.0\n",
        "--bounds",
        "fast",
    )
    assert "view 'aggregate'" in text.splitlines()[0]
    head, first, second = text.splitlines()[2:5]
    assert re.split("  +", head) == [
        "epsilon, at least and at most",
        "aggregate",
        "local",
        "messages",
        "met",
        "noise of the mean",
    ]
    counts = [2000 * 0.05 * 0.9, 1000 * 0.05 * 0.9]
    noise = [up(9.0 / count**0.5, 3) for count in counts]
    assert first.endswith(f"yes (quick)  {noise[0]} to {noise[1]}")
    assert "no (quick)" in second
    assert "all bounds together may give a smaller epsilon" in text
    exact = cj.account(RUN, cj.Gaussian(noise_multiplier=9.0), delta=1e-5, bounds="fast")
    assert all(f"  [ ] {each}" in text for each in exact.assumptions)


def test_a_target_that_nothing_meets_is_a_line_of_its_own(planned, capsys):
    hopeless = FLEET + "[target]\nepsilon = 1e-12\ndelta = 1e-300\nview = 'local'\n[[message]]\n"
    with pytest.raises(SystemExit) as stop:
        planned(hopeless + "[[message]]\nepsilon0 = 1.0\n", "--bounds", "fast")
    assert stop.value.code == 1
    text = capsys.readouterr().out
    assert "target_epsilon=1e-12: no noise_multiplier" in text
    assert "no (quick)" in text.splitlines()[4]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[fleet", "Expected ']' at the end of a table"),
        (FLEET + TARGET, "at least one [[message]]"),
        (TARGET + MESSAGES, "expected a table [fleet]"),
        (FLEET + MESSAGES, "expected a table [target]"),
        (FLEET + "[target]\nepsilon = 1.0\n" + MESSAGES, "[target] needs delta"),
        (FLEET + "[target]\ndelta = 1e-5\n[[message]]\n", "expected an epsilon in [target]"),
        (FLEET + TARGET + "free = 'weeks'\n" + MESSAGES, "free='weeks'"),
        (
            FLEET + TARGET + "free = 'cycles'\n[[message]]\n",
            "expected one of the two where cycles is searched",
        ),
        (FLEET + "[fleets]\n" + TARGET + MESSAGES, "did you mean fleet?"),
        (FLEET + TARGET + "[[message]]\nepsilon = 1.0\n", "did you mean epsilon0?"),
        (FLEET + TARGET + "[[message]]\nmechanism = 'l3'\n", "mechanism='l3'"),
        (FLEET + TARGET + "[[message]]\nepsilon0 = nan\n", "epsilon0=nan"),
        (FLEET + TARGET + "[[message]]\nepsilon0 = 'one'\n", "epsilon0='one'"),
        (
            FLEET + TARGET + "[[message]]\nepsilon0 = 1.0\nnoise_multiplier = 1.0\n",
            "[[message]] give exactly one of epsilon0 and noise_multiplier",
        ),
        (
            FLEET + TARGET + "[[message]]\nmechanism = 'k-ary'\n",
            "[[message]] mechanism k-ary needs num_values",
        ),
        (FLEET.replace("0.05", "'0.05'") + TARGET + MESSAGES, "check_in_prob='0.05': expected numbers"),
        (FLEET.replace("[2000, 1000]", "2000") + TARGET + MESSAGES, "expected a list of numbers"),
        (FLEET.replace("1000]", "0]") + TARGET + MESSAGES, "available[1]=0.0"),
        (FLEET.replace("0.05", "[0.05]") + TARGET + MESSAGES, "expected one number, or 2"),
        (FLEET.replace("= 3", "= 0") + TARGET + MESSAGES, "cycles=0"),
        (FLEET + TARGET.replace("1e-5", "2.0") + MESSAGES, "delta=2.0"),
        (FLEET + TARGET.replace("0.5", "-1.0") + MESSAGES, "epsilon=-1.0"),
        (FLEET + "num_colluding = 1000\n" + TARGET + MESSAGES, "num_colluding=1000: expected at most 999"),
        (FLEET + "min_reports = 2001\n" + TARGET + MESSAGES, "min_reports=2001"),
        (FLEET + TARGET + "[[message]]\nepsilon0 = 1.0\nshare = 0.0\n", "share=0.0"),
        (FLEET + TARGET + "[[message]]\nshare = 0.7\n[[message]]\nshare = 0.7\n", "not 1.4"),
        (FLEET + TARGET + "[[message]]\nshare = 0.7\n[[message]]\n", "expected one in each message"),
        (
            FLEET + "min_reports = 9\n" + TARGET + "[[message]]\nshare = 0.7\n",
            "says nothing of the messages of one",
        ),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(planned, capsys, text, told):
    with pytest.raises(SystemExit) as stop:
        planned(text)
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    assert told in err
    assert "plan.toml: " in err


@pytest.mark.parametrize("free", ["cycles", "num-rounds", "check-in-prob"])
def test_rounds_cycles_and_coins_are_searched_for_a_fleet(planned, free):
    """The value found meets the target, and a little more does not."""
    most = 0.1 if free == "check-in-prob" else 0.5  # clients that always come leak .27
    target = f"[target]\nepsilon = {most}\ndelta = 1e-5\n"
    more = ["--free", free, "--bounds", "fast"]
    (row,) = json.loads(planned(FLEET + target + "[[message]]\nepsilon0 = 1.0\n", *more, "--json"))[
        "messages"
    ]
    assert row["met"]
    one = cj.from_availability([2000, 1000], coin=0.05, drop_out_prob=0.1)
    run = {
        "cycles": lambda value: one.repeated(2 * value),
        "num-rounds": one.repeated,
        "check-in-prob": lambda value: cj.from_availability([2000, 1000] * 3, coin=value, drop_out_prob=0.1),
    }[free]

    def epsilon(value):
        return cj.account(run(value), cj.PureLDP(epsilon0=1.0), delta=1e-5, bounds="fast").epsilon

    assert row["messages"]["epsilon"] == pytest.approx(epsilon(row["found"]), rel=1e-9)
    assert row["messages"]["epsilon"] <= most
    assert epsilon(row["found"] * 1.001 if free == "check-in-prob" else row["found"] + 1) > most
    text = planned(FLEET + target + "[[message]]\nepsilon0 = 1.0\n", *more)
    assert {"cycles": " cycles (", "num-rounds": " rounds ", "check-in-prob": "check-in probability up to"}[
        free
    ] in text
    in_file = FLEET + target + f"free = '{free.replace('-', '_')}'\n[[message]]\nepsilon0 = 1.0\n"
    assert planned(in_file, "--bounds", "fast") == text


def test_a_year_of_hours_is_said_once(planned):
    fleet = f"[fleet]\navailable = {[2000] * 24}\ncheck_in_prob = 0.05\ncycles = 365\n"
    messages = "[[message]]\nepsilon0 = 0.1\n[[message]]\nnoise_multiplier = 9.0\n"
    text = planned(fleet + TARGET + messages, "--json", "--bounds", "fast")
    found = json.loads(text)
    assert found["messages"][0]["num_rounds"] == 8_760
    assert (found["cycles"], found["cycle"]["num_rounds"]) == (365, 24)
    assert found["cycle"]["log"]["available"] == [2000] * 24
    assert all(text.count(each["assumption"]) == 1 for each in found["assumptions"])
    assert all(text.count(each) == 1 for each in found["theorems"])
    assert len(text) < 10_000


def test_an_assumption_is_that_of_the_answers_that_need_it(planned):
    messages = "[[message]]\nepsilon0 = 0.1\n[[message]]\nnoise_multiplier = 9.0\n"
    text = planned(FLEET + TARGET + messages, "--bounds", "fast")
    head = "To be checked by somebody who knows the fleet"
    every, *others = text.split(head)[1:]
    assert every.startswith(", for every answer:")
    assert "plugged in all night" in every
    (seen,) = (each for each in others if each.startswith(", for view messages and aggregate:"))
    assert "dropping out does not depend on the data" in seen
    (summed,) = (each for each in others if "exactly the stated probability" in each)
    assert summed.startswith(", for Gaussian noise of 9 clip norms per message, view aggregate:")


@pytest.mark.parametrize(("epsilon", "told"), [("2.0", "yes"), ("0.2", "open"), ("0.01", "no")])
def test_a_target_between_the_ends_of_quick_bounds_is_open(planned, capsys, epsilon, told):
    """By quick bounds epsilon is between .044 and 1.41 here."""
    with contextlib.suppress(SystemExit):
        print(
            planned(
                FLEET + TARGET.replace("0.5", epsilon) + "[[message]]\nnoise_multiplier = 2.0\n",
                "--bounds",
                "fast",
            )
        )
    assert f" {told} (quick) " in capsys.readouterr().out


def test_honest_reporters_of_a_plan(planned):
    for term, value in (("num_colluding", 300), ("min_reports", 40)):
        target = TARGET.replace("0.5", "9.0")
        text = FLEET + f"{term} = {value}\n" + target + "[[message]]\nepsilon0 = 1.0\n"
        (row,) = json.loads(planned(text, "--json", "--bounds", "fast"))["messages"]
        run = cj.from_availability([2000, 1000] * 3, coin=0.05, drop_out_prob=0.1, **{term: value})
        exact = cj.account(run, cj.PureLDP(epsilon0=1.0), delta=1e-5, bounds="fast")
        assert row["messages"]["epsilon"] == exact.epsilon


def test_groups_of_a_plan_have_to_meet_the_target_each(planned, capsys, tmp_path):
    groups = "[[message]]\nepsilon0 = 1.0\nshare = 0.75\n[[message]]\nepsilon0 = 4.0\nshare = 0.25\n"
    with pytest.raises(SystemExit) as stop:
        planned(FLEET + TARGET + groups, "--json", "--bounds", "fast")
    assert stop.value.code == 1
    found = json.loads(capsys.readouterr().out)
    assert any("only clients of its own group" in each["assumption"] for each in found["assumptions"])
    first, second = found["messages"]
    assert (first["met"], second["met"]) == (True, False)
    for row, available, epsilon0 in ((first, [1500, 750], 1.0), (second, [500, 250], 4.0)):
        own = cj.from_availability(available * 3, coin=0.05, drop_out_prob=0.1)
        exact = cj.account(own, cj.PureLDP(epsilon0=epsilon0), delta=1e-5, bounds="fast")
        assert row["messages"]["epsilon"] == exact.epsilon
    kept = planned(FLEET + TARGET.replace("0.5", "9.0") + groups, "--bounds", "fast")
    assert "all lines have to meet the target" in kept
    assert "1,500 clients: 1-LDP" in kept
    some = FLEET + TARGET.replace("0.5", "1.0") + groups.replace("4.0", "1.0")
    found = planned(some, "--free", "cycles", "--bounds", "fast")
    cycles = sorted(
        int(each.replace(",", "")) for each in re.findall(r"LDP messages: ([\d,]+) cycles", found)
    )
    assert len(cycles) == 2
    assert cycles[0] < cycles[1]
    assert f"same rounds: {cycles[0]:,} cycles at most meet the target for all." in " ".join(found.split())
    with pytest.raises(SystemExit):
        cli.main(["statement", str(tmp_path / "plan.toml")])
    assert "a statement is of one group" in capsys.readouterr().err
