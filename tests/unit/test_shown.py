"""What results look like where they are printed, in a terminal and in a notebook."""

import dataclasses
import html
import json
import math
import re
import warnings

import dp_accounting
import numpy as np
import pytest
from stand_in import quick_account

import checkin_jax as cj
from checkin_jax import Sweep
from checkin_jax.accounting.guarantee import without_parentheses
from checkin_jax.accounting.interop.accountant import MixedViewsWarning

RUN = cj.ShuffledCheckIn(num_clients=500, check_in_prob=0.2, num_rounds=8)
PURE, NOISE = cj.PureLDP(epsilon0=1.0), cj.Gaussian(noise_multiplier=3.0)
LONG = re.compile(r"protocol=|PureLDP\(")


def test_a_guarantee_is_short_in_a_list_and_whole_in_print():
    g = quick_account(RUN, PURE, delta=1e-6)
    assert repr(g) == "<Guarantee: 0.008 <= epsilon <= 0.016 at delta = 1e-06, view 'messages', certified>"
    assert str(g) == g.statement()
    assert "\n  protects   one client's record among 500" in str(g)


@pytest.mark.parametrize("use", [float, math.exp, "%.3f".__mod__, lambda g: np.asarray([g], dtype=float)])
def test_a_guarantee_is_no_number(use):
    g = quick_account(RUN, PURE, delta=1e-6)
    with pytest.raises(TypeError, match=r"expected its \.epsilon \(the upper end\) or its \.lower"):
        use(g)


def test_a_guarantee_in_a_notebook_says_all_of_the_statement_and_nothing_unescaped():
    g = dataclasses.replace(quick_account(RUN, PURE, delta=1e-6), warnings=("a < b",), assumptions=("c & d",))
    page = g._repr_html_()
    assert g.headline.replace("<=", "&lt;=") in page
    assert "a &lt; b" in page
    assert "c &amp; d" in page
    assert page.count("<tr>") == len(str(g).splitlines()) - 1


def test_a_calibration_begins_with_its_value():
    found = cj.calibrate(RUN, cj.PureLDP, target_epsilon=0.2, delta=1e-6, view="local")
    value = f"epsilon0 = {found.value:.10g}"
    assert str(found) == f"{value}\n\n{found.guarantee}"
    assert repr(found).startswith(f"<Calibration: {value}, <Guarantee: ")
    assert value in found._repr_html_()
    assert found.guarantee._repr_html_() in found._repr_html_()


def test_the_short_adversary_keeps_every_part():
    assert without_parentheses("somebody who sees a (or b); and c (d)") == "somebody who sees a; and c"


def sweep(**columns):
    return Sweep({name: np.array(column) for name, column in columns.items()})


def test_a_sweep_is_a_table_of_what_varies_with_ends_rounded_outwards():
    table = sweep(
        num_clients=[10, 20, 30],
        delta=[1e-6] * 3,
        epsilon=[1.234561, np.nan, 3.0],
        lower=[1.234569, np.nan, 2.0],
        method=["clones", "clones", "hexagon"],
        error=["", "a | b", ""],
    )
    head, *rows, summary = str(table).splitlines()
    assert head.split() == ["num_clients", "epsilon", "lower", "error"]
    assert rows[0].split() == ["10", "1.2346", "1.2345"]
    assert summary == "3 settings, 1 with an error; all with delta 1e-06"
    assert len({len(row) for row in (head, *rows)}) == 1
    assert repr(table).startswith("<Sweep: 3 settings, 1 with an error, columns num_clients, delta,")
    assert html.escape(str(table)) in table._repr_html_()


def test_of_many_settings_the_first_are_shown_on_a_screen():
    table = sweep(num_rounds=np.arange(12), epsilon=np.ones(12), error=[""] * 12)
    assert len(str(table).splitlines()) == 12
    assert str(table).endswith("12 settings, of which 10 are shown")
    assert str(sweep(a=[1])).splitlines()[0] == "a"


def ledger(*events):
    accountant = cj.CheckInAccountant(bounds="clones")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MixedViewsWarning)
        for event in events:
            accountant.compose(event)
    return accountant


def test_a_ledger_of_one_run_states_what_account_states():
    accountant = ledger(cj.to_event(RUN, PURE))
    g, alone = accountant.guarantee(1e-6, attack=True), cj.account(RUN, PURE, delta=1e-6, bounds="clones")
    assert (g.epsilon, g.lower, g.delta) == (alone.epsilon, alone.lower, 1e-6)
    assert (g.method, g.lower_method) == (alone.method, alone.lower_method)
    assert (g.theorems, g.assumptions, g.warnings) == (alone.theorems, alone.assumptions, alone.warnings)
    assert g.headline == alone.headline
    assert str(g).splitlines()[0] == str(alone).splitlines()[0]
    assert (
        "  composed   500 clients, over 8 rounds of check-ins at rate 0.2; 1-LDP messages; view 'messages'"
        in str(g)
    )
    assert g.attack.advantage == alone.advantage
    assert "  advantage  between" in g.statement(attack=True)
    assert json.loads(json.dumps(g.as_dict(), allow_nan=False))["epsilon"] == alone.epsilon
    assert not LONG.search(repr(accountant))
    assert "8 units of 1 kind, replace-one" in repr(accountant)
    line = "500 clients, over 8 rounds of check-ins at rate 0.2; 1-LDP messages; view 'messages'"
    assert str(accountant).splitlines()[0] == line


def test_parameters_of_messages_are_cut_on_the_side_on_which_the_statement_stays_true():
    assert cj.PureLDP(epsilon0=1.6507650751439973).description == "1.65076-LDP messages"
    assert cj.Gaussian(noise_multiplier=2 / 3).description.startswith("Gaussian noise of 0.666667 ")
    assert cj.Gaussian(noise_multiplier=1.2345671).description.startswith("Gaussian noise of 1.23457 ")
    assert cj.Gaussian(noise_multiplier=1.2345611).description.startswith("Gaussian noise of 1.23457 ")


def test_a_mixed_ledger_names_every_adversary_and_every_unit():
    accountant = cj.CheckInAccountant(bounds="fast")
    events = [
        cj.to_event(RUN, PURE),
        cj.to_event(RUN, NOISE, view="local"),
        dp_accounting.GaussianDpEvent(10.0),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MixedViewsWarning)
        for event in events:
            accountant.compose(event)
    g = accountant.guarantee(1e-6)
    assert g.epsilon == accountant.get_epsilon(1e-6)
    assert g.lower == accountant.get_lower_epsilon(1e-6)
    for words in (
        "every privatised message of every round",
        "together with its name",
        "the outputs of a trusted server",
    ):
        assert words in g.headline
    assert len(g.composed) == 3
    assert "views 'messages' and 'local'" in str(g).splitlines()[0]
    assert any("different views" in warning for warning in g.warnings)
    assert any("its server is trusted" in each for each in g.assumptions)


def test_ledgers_without_a_finite_answer():
    with pytest.raises(ValueError, match="nothing was composed"):
        cj.CheckInAccountant().guarantee(1e-6)
    with pytest.raises(ValueError, match="target_delta"):
        ledger(cj.to_event(RUN, PURE)).guarantee(0.0)
    g = ledger(dp_accounting.NonPrivateDpEvent()).guarantee(1e-6)
    assert "epsilon <= inf" in g.headline
    assert g.as_dict()["epsilon"] is None
