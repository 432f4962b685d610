"""`checkin ledger add`, `show` and `report`: what lies in the file, what is said of it, and who may write it."""

import contextlib
import json
import multiprocessing
import time

import dp_accounting
import pytest

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax._files import hold
from checkin_jax.accounting.interop.accountant import CheckInAccountant, MixedViewsWarning
from checkin_jax.accounting.interop.events import to_event

PROTOCOL = cj.ShuffledCheckIn(num_clients=2000, check_in_prob=0.1, num_rounds=20)
RUN = ["--num-clients", "2000", "--check-in-prob", "0.1", "--num-rounds", "20"]


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    return tmp_path


def run(capsys, *args: str) -> str:
    cli.main(list(args))
    return capsys.readouterr().out


def refused(capsys, *args: str) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(args))
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    return err


def test_a_ledger_says_what_the_accountant_says(capsys):
    said = run(capsys, "ledger", "add", "fleet.json", *RUN, "--epsilon0", "1")
    assert "20 rounds" in said
    mixed = run(capsys, "ledger", "add", "fleet.json", *RUN, "--noise-multiplier", "4", "--view", "aggregate")
    assert "note: units are composed in different views" in mixed
    accountant = CheckInAccountant()
    accountant.compose(to_event(PROTOCOL, cj.PureLDP(epsilon0=1.0)))
    with pytest.warns(MixedViewsWarning):
        accountant.compose(to_event(PROTOCOL, cj.Gaussian(noise_multiplier=4.0), view="aggregate"))
    expected = accountant.guarantee(1e-6)
    found = json.loads(run(capsys, "ledger", "show", "fleet.json", "--json"))
    assert (found["epsilon"], found["lower"]) == (expected.epsilon, expected.lower)
    text = run(capsys, "ledger", "show", "fleet.json")
    assert text.startswith(expected.headline + "\n")
    assert all(each in text for each in expected.composed)
    assert expected.statement() in run(capsys, "ledger", "show", "fleet.json", "--verbose")


def test_a_saved_accountant_is_a_ledger(capsys, here):
    accountant = CheckInAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(50.0), 3)
    (here / "saved.json").write_text(json.dumps(accountant.state_dict()))
    run(capsys, "ledger", "add", "saved.json", *RUN, "--epsilon0", "1")
    accountant.compose(to_event(PROTOCOL, cj.PureLDP(epsilon0=1.0)))
    found = json.loads(run(capsys, "ledger", "show", "saved.json", "--json", "--delta", "1e-5"))
    assert found["epsilon"] == accountant.guarantee(1e-5).epsilon


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (None, "No such file"),
        ("{", "no ledger"),
        ("[]", "no object"),
        ("{}", "no ledger: expected a file made by"),
    ],
)
def test_what_is_no_ledger_is_refused(capsys, here, content, word):
    if content is not None:
        (here / "x.json").write_text(content)
        assert word in refused(capsys, "ledger", "add", "x.json", *RUN, "--epsilon0", "1")
        assert (here / "x.json").read_text() == content
    assert word in refused(capsys, "ledger", "show", "x.json")


def test_one_relation_a_file_and_no_half_written_one(capsys, here):
    run(capsys, "ledger", "add", "one.json", *RUN, "--epsilon0", "1")
    before = (here / "one.json").read_bytes()
    window = ["--protocol", "fixed-window", "--num-clients", "100", "--num-slots", "10", "--epsilon0", "1"]
    assert "replace" in refused(
        capsys, "ledger", "add", "one.json", *window, "--neighboring-relation", "add-or-remove-one"
    ).lower().replace("_", "-")
    with hold(here / ".one.json.lock", "one.json"):
        assert "in use" in refused(capsys, "ledger", "add", "one.json", *RUN, "--epsilon0", "1")
    assert (here / "one.json").read_bytes() == before


def test_twelve_months_of_a_log_are_the_year(capsys, here):
    """Night and day, month by month: the ledger says what `account` says of all rounds."""
    day = [1_600_000] * 8 + [1_000_000] * 2 + [500_000] * 14
    for month in range(12):
        lines = [f"{available + month * 100},0.0005" for available in day * 30]
        (here / "month.csv").write_text("\n".join(["available,coin", *lines]))
        run(capsys, "ledger", "add", "year.json", "--availability", "month.csv", "--epsilon0", "4")
    year = cj.from_availability([n + m * 100 for m in range(12) for n in day * 30], coin=0.0005)
    exact = cj.account(year, cj.PureLDP(epsilon0=4.0), delta=1e-8)
    found = json.loads(run(capsys, "ledger", "show", "year.json", "--json", "--delta", "1e-8"))
    assert found["epsilon"] == pytest.approx(exact.epsilon, rel=1e-3)
    assert found["lower"] == pytest.approx(exact.lower, rel=1e-3)
    assert any("plugged in all night" in each for each in found["assumptions"])
    assert len(found["composed"]) == 12
    out = run(capsys, "ledger", "report", "year.json", "--delta", "1e-8").strip()
    assert "8,640 rounds or windows" in (here / out).read_text()
    assert "plugged in all night" in (here / out).read_text()


def add(number: int) -> int:
    for _ in range(200):
        with contextlib.suppress(SystemExit):  # another process is at it
            cli.main(["ledger", "add", "many.json", *RUN, "--epsilon0", str(number)])
            return 0
        time.sleep(0.05)
    return 1


def test_processes_that_add_at_once_lose_nothing(capsys):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(add, [1, 2, 3]) == [0, 0, 0]
    found = json.loads(run(capsys, "ledger", "show", "many.json", "--json", "--bounds", "fast"))
    assert len(found["composed"]) == 3
