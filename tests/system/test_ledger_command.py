"""`checkin ledger`: what lies in the file, who added it, what is said and left of it, and who may write it."""

import contextlib
import json
import multiprocessing
from pathlib import Path

import dp_accounting
import pytest

import checkin_jax as cj
from checkin_jax import _files, cli
from checkin_jax._rounding import down
from checkin_jax.accounting.interop import ledger_file
from checkin_jax.accounting.interop.accountant import CheckInAccountant, MixedViewsWarning
from checkin_jax.accounting.interop.events import to_event
from checkin_jax.cli import ledger_command

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
    assert "note: units have different views" in mixed
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


def test_one_relation_a_file_and_one_writer_at_a_time(capsys, here, monkeypatch):
    run(capsys, "ledger", "add", "one.json", *RUN, "--epsilon0", "1")
    before = (here / "one.json").read_bytes()
    monkeypatch.setattr(_files, "PATIENCE", 0.1)
    window = ["--protocol", "fixed-window", "--num-clients", "100", "--num-slots", "10", "--epsilon0", "1"]
    assert "of another neighboring relation" in refused(
        capsys, "ledger", "add", "one.json", *window, "--neighboring-relation", "add-or-remove-one"
    )
    with contextlib.suppress(InterruptedError), _files.replacing(here / "one.json"):
        assert "another process is writing it" in refused(
            capsys, "ledger", "add", "one.json", *RUN, "--epsilon0", "1"
        )
        raise InterruptedError
    assert (here / "one.json").read_bytes() == before


def test_twelve_months_of_a_log_are_the_year(capsys, here):
    """Night and day, month by month: the ledger says what `account` says of all rounds."""
    day = [1_600_000] * 8 + [1_000_000] * 2 + [500_000] * 14
    days = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    for month, length in enumerate(days):
        lines = [f"{available + month * 100},0.0005" for available in day * length]
        (here / "month.csv").write_text("\n".join(["available,coin", *lines]))
        run(capsys, "ledger", "add", "year.json", "--availability", "month.csv", "--epsilon0", "4")
    year = cj.from_availability([n + m * 100 for m in range(12) for n in day * days[m]], coin=0.0005)
    exact = cj.account(year, cj.PureLDP(epsilon0=4.0), delta=1e-8)
    found = json.loads(run(capsys, "ledger", "show", "year.json", "--json", "--delta", "1e-8"))
    assert year.num_rounds == 8_760
    assert found["epsilon"] == pytest.approx(exact.epsilon, rel=1e-3)
    assert found["lower"] == pytest.approx(exact.lower, rel=1e-3)
    assert any("plugged in all night" in each for each in found["assumptions"])
    assert len(found["composed"]) == 12
    out = run(capsys, "report", "year.json", "--delta", "1e-8").strip()
    assert "8,760 rounds or windows" in (here / out).read_text()
    assert "plugged in all night" in (here / out).read_text()


def add(number: int) -> None:
    cli.main(["ledger", "add", "many.json", *RUN, "--epsilon0", str(number), "--note", f"site {number}"])


def test_processes_that_add_at_once_lose_nothing(capsys, here):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        pool.map(add, [1, 2, 3, 4, 5, 6], chunksize=1)
    found = json.loads(run(capsys, "ledger", "list", "many.json", "--json"))["entries"]
    assert [each["id"] for each in found] == [1, 2, 3, 4, 5, 6]
    assert {each["ran"]["randomizer"]["epsilon0"] for each in found} == {1, 2, 3, 4, 5, 6}
    assert [each.name for each in here.iterdir()] == ["many.json"]


def test_a_day_to_come_is_no_day_of_a_run(capsys):
    told = refused(capsys, "ledger", "add", "l.json", *RUN, "--epsilon0", "1", "--on", "2999-01-01")
    assert "--on 2999-01-01: expected a day up to today" in told


def test_a_ledger_keeps_dates_names_and_its_target(capsys, here):
    first = ["--on", "2026-01-31", "--note", "site Ulm", "--by", "Ann"]
    run(capsys, "ledger", "add", "x.json", *RUN, "--epsilon0", "1", *first, "--delta", "1e-8")
    kept = (here / "x.json").read_bytes()
    second = ["--on", "2026-02-28", "--by", "Bob", "--target-epsilon", "1"]
    assert "warning" not in run(capsys, "ledger", "add", "x.json", *RUN, "--epsilon0", "2", *second)
    again = run(capsys, "ledger", "add", "x.json", *RUN, "--epsilon0", "1")
    assert "warning: entry 1 of 2026-01-31 is the same run" in again
    assert "checkin ledger remove x.json 3" in again
    march = [*RUN, "--epsilon0", "2", "--on", "2026-03-31"]
    assert "warning" not in run(capsys, "ledger", "add", "other.json", *march)
    assert "warning" not in run(capsys, "ledger", "add", "other.json", *march[:-1], "2026-04-30")
    assert "warning: entry 2 of 2026-04-30" in run(
        capsys, "ledger", "add", "other.json", *march[:-1], "2026-04-30"
    )
    assert (here / "x.json").read_bytes().startswith(kept), "lines are appended, and never changed"
    three = json.loads(run(capsys, "ledger", "show", "x.json", "--json"))
    assert (three["delta"], three["target_epsilon"]) == (1e-8, 1.0)
    run(capsys, "ledger", "remove", "x.json", "3", "--note", "added twice", "--by", "Ann")
    listed = run(capsys, "ledger", "list", "x.json")
    assert "1     2026-01-31 Ann" in listed
    assert "(site Ulm)" in listed
    assert "; view 'messages'; removed on " in listed
    assert "by Ann (added twice)" in listed
    two = json.loads(run(capsys, "ledger", "show", "x.json", "--json"))
    assert two["epsilon"] < three["epsilon"]
    assert "entry 3 was removed on" in refused(capsys, "ledger", "remove", "x.json", "3")
    assert "expected one of 1 to 3" in refused(capsys, "ledger", "remove", "x.json", "4")
    other = ["--delta", "1e-6", "--epsilon0", "1"]
    assert "delta 1e-6: expected 1e-08, which x.json keeps" in refused(
        capsys, "ledger", "add", "x.json", *RUN, *other
    )
    assert "--on June: expected a date" in refused(
        capsys, "ledger", "add", "x.json", *RUN, "--epsilon0", "1", "--on", "June"
    )
    assert "note: the ledger's own delta is 1e-08" in run(
        capsys, "ledger", "show", "x.json", "--delta", "1e-5"
    )


def test_what_is_left_is_what_fits_and_a_summary_names_nobody(capsys):
    run(capsys, "ledger", "add", "x.json", *RUN, "--epsilon0", "1", "--note", "site Ulm", "--by", "Ann")
    assert "note: the ledger keeps no delta" in run(capsys, "ledger", "show", "x.json")
    more = ["--epsilon0", "2", "--delta", "1e-6", "--target-epsilon", "3", "--note", "site Rom"]
    run(capsys, "ledger", "add", "x.json", *RUN, *more, "--on", "2026-02-28")
    left = json.loads(run(capsys, "ledger", "show", "x.json", "--json"))["rounds_left"]
    assert f"left of epsilon 3 for runs like entry 2: {left:,} rounds" in run(
        capsys, "ledger", "show", "x.json"
    )
    spent = json.loads(run(capsys, "budget", "x.json", "--json"))
    assert spent["rounds_left"] == left
    assert spent["left"] == 3.0 - spent["spent"]
    accountant = CheckInAccountant()
    accountant.compose(to_event(PROTOCOL, cj.PureLDP(epsilon0=1.0)))
    last = cj.PureLDP(epsilon0=2.0)
    accountant.compose(to_event(PROTOCOL, last))
    for factor, fits in ((1.0, True), (1.02, False)):
        trial = CheckInAccountant()
        trial.load_state_dict(accountant.state_dict())
        trial.compose(to_event(PROTOCOL.repeated(int(left * factor) + 1 - fits), last))
        assert (trial.get_epsilon(1e-6) <= 3.0) == fits
    for form in ([], ["--json"]):
        told = run(capsys, "budget", "x.json", *form)
        for secret in ("Ulm", "Rom", "Ann", "site"):
            assert secret not in told
        assert f"{left:,}" in told or str(left) in told
    assert "2 runs of 40 rounds in all" in run(capsys, "budget", "x.json")


def test_what_is_left_is_said_in_weeks_where_days_tell_the_rounds_of_one(capsys, here):
    (here / "week.csv").write_text("available,coin\n" + "2000,0.05\n" * 168)
    add = ["ledger", "add", "x.json", "--availability", "week.csv", "--epsilon0", "0.2", "--delta", "1e-5"]
    run(capsys, *add, "--target-epsilon", "1", "--on", "2026-03-01")
    assert json.loads(run(capsys, "budget", "x.json", "--json"))["weeks_left"] is None
    assert " times its 168 rounds" in run(capsys, "budget", "x.json")
    for day in ("2026-03-08", "2026-03-15"):
        run(capsys, *add, "--on", day)
    told = json.loads(run(capsys, "budget", "x.json", "--json"))
    assert told["weeks_left"] == told["rounds_left"] / 168
    words = f"{told['rounds_left']:,} rounds, or {down(told['weeks_left'], 3)} weeks at 168 rounds a week"
    for command in ("budget", "ledger show"):
        assert words in run(capsys, *command.split(), "x.json")
    # No more rounds of a log are tried: of them the number is a lower bound, and weeks are whole.
    (line,) = ledger_command._left_words(ledger_command._read(Path("x.json")), 1_000_000)
    assert "at least 1,000,000 rounds, or 5,952 weeks at" in line


def test_the_days_of_a_month_are_cycles_of_one_log(capsys, here):
    (here / "day.csv").write_text("available,coin\n2000,0.05\n1000,0.05\n")
    (here / "month.csv").write_text("available,coin\n" + "2000,0.05\n1000,0.05\n" * 31)
    rounds = ["--epsilon0", "0.5", "--delta", "1e-5"]
    run(capsys, "ledger", "add", "one.json", "--availability", "day.csv", "--cycles", "31", *rounds)
    run(capsys, "ledger", "add", "all.json", "--availability", "month.csv", *rounds)
    day, month = (
        json.loads(run(capsys, "ledger", "show", f"{name}.json", "--json")) for name in ("one", "all")
    )
    assert (day["epsilon"], day["lower"]) == (month["epsilon"], month["lower"])
    asked = ["--epsilon0", "0.5", "--delta", "1e-5", "--view", "messages", "--json"]
    said = run(capsys, "epsilon", "--availability", "day.csv", "--cycles", "31", *asked)
    assert said == run(capsys, "epsilon", "--availability", "month.csv", *asked)


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


@pytest.fixture
def two_entries(capsys, here):
    for epsilon0 in ("1", "2"):
        run(capsys, "ledger", "add", "x.json", *RUN, "--epsilon0", epsilon0)
    return here / "x.json"


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda lines: [lines[0], lines[1].replace(b'"count": 20', b'"count": 2'), lines[2]], 2),
        (lambda lines: [lines[0], lines[2]], 2),
        (lambda lines: [lines[0], lines[2], lines[1]], 2),
        (lambda lines: [*lines, lines[2]], 4),
        (lambda lines: [*lines, b"{}\n"], 4),
        (lambda lines: [*lines[:2], lines[2][:40] + b"\n"], 3),
    ],
)
def test_a_line_that_was_changed_lost_or_moved_is_noticed(two_entries, capsys, spoil, line):
    two_entries.write_bytes(b"".join(spoil(lines_of(two_entries))))
    kept = two_entries.read_bytes()
    assert f"x.json: line {line}: damaged" in refused(capsys, "ledger", "show", "x.json")
    assert f"line {line}: damaged" in refused(capsys, "ledger", "add", "x.json", *RUN, "--epsilon0", "1")
    assert two_entries.read_bytes() == kept


def test_a_line_cut_short_by_a_kill_does_not_count(two_entries, capsys):
    whole = two_entries.read_bytes()
    two_entries.write_bytes(whole[:-30])
    cli.main(["ledger", "list", "x.json", "--json"])
    out, err = capsys.readouterr()
    assert len(json.loads(out)["entries"]) == 1
    assert "the last line is incomplete" in err
    run(capsys, "ledger", "add", "x.json", *RUN, "--epsilon0", "2")
    assert two_entries.read_bytes() == whole


def test_a_ledger_is_what_a_run_begins_with(two_entries):
    found = ledger_file.read(two_entries)
    assert found.before == ((PROTOCOL, cj.PureLDP(epsilon0=1.0)), (PROTOCOL, cj.PureLDP(epsilon0=2.0)))
    accountant = CheckInAccountant()
    accountant.load_state_dict(found.state)
    (first, its), second = found.before
    both = cj.account(*second, delta=1e-6, before=[(first, its)])
    assert accountant.get_epsilon(1e-6) == pytest.approx(both.epsilon, rel=1e-9)


def test_other_events_are_entries_that_no_run_begins_with(capsys, here):
    accountant = CheckInAccountant().compose(dp_accounting.GaussianDpEvent(50.0), 3)
    accountant.compose(dp_accounting.NonPrivateDpEvent())
    (here / "y.json").write_text(json.dumps(accountant.state_dict()))
    listed = run(capsys, "ledger", "list", "y.json")
    assert "3 x " in listed
    assert "a non-private event" in listed
    run(capsys, "ledger", "remove", "y.json", "2")
    assert json.loads(run(capsys, "ledger", "show", "y.json", "--json"))["epsilon"] is not None
    with pytest.raises(ValueError, match="entry 1: expected a run of check-ins"):
        _ = ledger_file.read(here / "y.json").before


def test_a_run_ends_where_ledger_and_run_together_reach_the_target(capsys, here):
    """And what was run is an entry afterwards, with all rounds that were to run."""
    before = ["--num-clients", "400", "--check-in-prob", "0.2", "--num-rounds", "6", "--epsilon0", "1"]
    run(capsys, "ledger", "add", "x.json", *before, "--delta", "1e-5", "--target-epsilon", "1")
    left = json.loads(run(capsys, "ledger", "show", "x.json", "--json"))["rounds_left"]
    train = ["train", "digits", "--num-clients", "400", "--check-in-prob", "0.2", "--epsilon0", "1"]
    train += ["--num-rounds", "400", "--run-dir", "runs", "--ledger", "x.json", "--eval-every", "1000"]
    assert "--delta 1e-06: expected 1e-05, which x.json keeps" in refused(capsys, *train)
    # A view in which less is seen than of an entry would count too little of it.
    assert "--target-view aggregate: expected messages, the view of entry 1 of x.json" in refused(
        capsys, *train, "--delta", "1e-5", "--mechanism", "any", "--target-view", "aggregate"
    )
    # So it would in the report of a run without a target.
    run(capsys, "ledger", "add", "names.json", *before, "--delta", "1e-5", "--view", "local")
    named = [*train[:-3], "names.json", *train[-2:], "--delta", "1e-5"]
    assert "--target-view messages: expected local, the view of entry 1 of names.json" in refused(
        capsys, *named, "--mechanism", "any"
    )
    run(capsys, *train, "--delta", "1e-5", "--mechanism", "any")
    spent = json.loads(run(capsys, "budget", "runs", "--json"))
    assert spent["target_epsilon"] == 1.0
    assert left <= spent["rounds"] <= 1.01 * left + 1
    assert "came after" not in run(capsys, "ledger", "add", "x.json", "--run", "runs")
    # A ledger that lacks what was run before is told.
    assert "came after 400 clients, over 6 rounds" in run(capsys, "ledger", "add", "y.json", "--run", "runs")
    both = json.loads(run(capsys, "ledger", "show", "x.json", "--json"))
    assert both["epsilon"] == pytest.approx(spent["spent"]["messages"], rel=1e-9)
    assert both["rounds_left"] == 0
    assert "--epsilon0 is given by --run" in refused(
        capsys, "ledger", "add", "x.json", "--run", "runs", "--epsilon0", "1"
    )


def test_a_ledger_of_clients_added_or_removed_has_a_statement(capsys):
    window = ["--protocol", "fixed-window", "--num-clients", "100", "--num-slots", "10", "--epsilon0", "1"]
    run(capsys, "ledger", "add", "one.json", *window, "--neighboring-relation", "add-or-remove-one")
    said = run(capsys, "statement", "one.json", "--bounds", "fast")
    # There is no bound against somebody who sees names.
    assert "View 'messages'" in said
    assert "View 'local'" not in said
    assert "no figure may be relied on" in said


def test_a_statement_calls_an_upper_bound_on_the_clients_no_lower_one(capsys):
    window = ["--protocol", "sliding-window", "--num-clients", "150", "--window", "100", "--epsilon0", "1"]
    run(capsys, "ledger", "add", "one.json", *window)
    said = run(capsys, "statement", "one.json", "--bounds", "fast")
    assert "there are no more clients than the stated number" in said
    assert "150 clients at once." in said
    assert "at least 150" not in said


def test_a_budget_warns_of_a_delta_that_is_too_large(capsys):
    run(capsys, "ledger", "add", "one.json", *RUN, "--epsilon0", "1", "--delta", "0.01")
    assert "note: delta = 0.01 is not below 1/num_clients" in run(capsys, "budget", "one.json")
