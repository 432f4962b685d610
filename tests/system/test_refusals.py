"""Malformed command lines and files, as first users typed them: one line, exit code 2, the options' own names."""

from __future__ import annotations

import contextlib
import json
import re

import pytest

from checkin_jax import cli

RUN = "--num-clients 2000 --check-in-prob 0.1 --num-rounds 20 --epsilon0 1"
COINS = "--num-clients 2000 --check-in-prob 0.1"
CURVES, CLIENTS = "shuffled-check-in-figure-3", "random-check-ins-clients"
FLEET = "[fleet]\navailable = [2000, 1000]\ncheck_in_prob = 0.05\n"
TARGET = "[target]\nepsilon = 0.5\ndelta = 1e-5\n[[message]]\nepsilon0 = 1.0\n"
ENTRY = {
    "protocol": {"kind": "Shuffle", "num_clients": 9, "num_rounds": 1, "num_colluding": 0},
    "randomizer": {"kind": "PureLDP", "epsilon0": 1.0, "total_variation": 1.0},
    "view": "messages",
    "count": 1,
}
LEDGER = {
    "schema": 3,
    "version": "0",
    "neighboring_relation": "REPLACE_ONE",
    "non_private": False,
    "ledger": [ENTRY],
    "central": [],
}
FILES = {
    "good.json": json.dumps(LEDGER),
    "cut.json": json.dumps(LEDGER)[:40],
    "list.json": "[]",
    "empty.json": "",
    "old.json": json.dumps(LEDGER | {"schema": 1}),
    "nothing.json": json.dumps(LEDGER | {"ledger": []}),
    "good.toml": FLEET + TARGET,
    "typo.toml": FLEET.replace("available", "availble") + TARGET,
    "clients.toml": FLEET.replace("available", "num_clients") + TARGET,
    "half.toml": FLEET.replace("0.05", ".05") + TARGET,
    "cut.toml": FLEET[:9],
    "delta.toml": FLEET + TARGET.replace("1e-5", "2.0"),
    "latin.toml": "# \xe9\n",
    "unquoted.toml": "[deployment]\nview = messages\n",
    "deployment.toml": "[deployment]\noperater = 'us'\n",
    "none.csv": "available,coin\n",
    "coin.csv": "available,coin\n9,.1\n9,1.5\n",
    "half.csv": "available,coin\n9.5,.1\n",
    "words.csv": "available,coin\nmany,.1\n",
    "rates.csv": "rate\n0.1\n1.7\n",
    "two.csv": "rate\n0.1\n0.2\n",
    "log.csv": "available,coin\n900,.1\n400,.1\n",
    "commas.csv": "rate,count\n.1,20,000\n",
    "twice.csv": "rate,rate\n.1,.2\n",
    "page.html": "<p>mine</p>",
}
# Of each command the words, and how its one line begins or goes on.
REFUSED = f"""
# Numbers.
epsilon {RUN} --delta 0 -> --delta 0: expected a number in [1e-300, 1]
epsilon {RUN} --delta 1e-400 -> --delta 1e-400: expected a number in [1e-300, 1]
epsilon {RUN} --delta small -> --delta small: expected a number
epsilon {RUN} --delta=0 -> --delta 0: expected a number in
epsilon {RUN} --delta -> --delta without a value: expected a number
epsilon --num-clients 0 --check-in-prob 0.1 --epsilon0 1 -> --num-clients 0: expected a whole number in
epsilon --num-clients 60,000 --check-in-prob 0.1 --epsilon0 1 -> 60,000: expected a whole number (see
epsilon --num-clients 7.5 --check-in-prob 0.1 --epsilon0 1 -> --num-clients 7.5: expected a whole number
epsilon --num-clients 5 --check-in-prob 10% --epsilon0 1 -> 10%: expected a number (see
epsilon --num-clients 5 --check-in-prob 1.2 --epsilon0 1 -> --check-in-prob 1.2: expected a number in (0, 1]
epsilon {RUN} --num-colluding 2000 -> --num-colluding 2000: expected at most 1999
epsilon {RUN} --client-rate 0.1 -> --client-rate 0.1: expected none
epsilon --num-clients inf --check-in-prob 0.1 --epsilon0 1 -> --num-clients
epsilon --num-clients 1{"0" * 400} --check-in-prob 0.1 --epsilon0 1 -> --num-clients 1000
epsilon --num-clients -> --num-clients without a value: expected a whole number
epsilon --num-clients 5 --check-in-prob 0,003 --epsilon0 1 -> 0,003: expected a number (see
epsilon {RUN} --delta 1/0 -> --delta 1/0: expected a number (see
# Words.
epsilon {RUN} --view server -> --view server: expected one of local, messages, aggregate
epsilon {RUN} --bounds clones,T7 -> --bounds clones,T7: expected best, fast, or words
epsilon {RUN} --bounds= -> --bounds ''
epsilon {RUN} --neighboring-relation add-or-remove-one -> --neighboring-relation add-or-remove-one: expected
epsilon {RUN} -x -> no option -x
epsilon {RUN} more -> more: one word too many
epsilon --view --json -> --view without a value: expected one of local
fly -> Unknown command "fly". Available commands: epsilon, verify, calibrate, plan,
ledger add x --summary -> no option --summary (see checkin ledger add --help)
# Near words.
epsilon --num-client 5 -> did you mean --num-clients? (see checkin epsilon --help)
epsilon --num_cleints=5 -> did you mean --num-clients?
epsilon --sigma 5 -> did you mean --noise-multiplier?
epsilon -n 5 -> did you mean --num-clients?
calibrate --free epsilon0 --eps 5 -> did you mean --target-epsilon?
epsilon --protocol fixed -> did you mean fixed-window?
epsilon --zzz 1 -> no option --zzz (see checkin epsilon --help)
epsilonn -> Unknown command "epsilonn". Did you mean "epsilon"?
train cifar -> Unknown command "cifar". Available commands: digits, mnist.
--completion tcsh -> --completion tcsh: expected one of bash, zsh, fish
# Options that do not go together.
epsilon {RUN} --delta 1e-6 --delta 1e-7 -> Parameter --delta specified multiple times.
epsilon {RUN} --noise-multiplier 2 -> exactly one of --epsilon0 and --noise-multiplier
epsilon {RUN} --by-rate -> --by-rate goes with --rates or --largest-rate
epsilon {RUN} --num-slots 5 -> --num-slots is not an option of --protocol shuffled-check-in
epsilon {RUN} --num-values 5 -> --num-values goes with --mechanism k-ary
epsilon {RUN} --largest-rate 0.1 -> --largest-rate and --expected-check-ins go together
epsilon {RUN} --smallest-rate 0.1 -> --smallest-rate goes with --largest-rate and --num-clients
epsilon {COINS} -> exactly one of --epsilon0 and --noise-multiplier
epsilon --epsilon0 1 -> needs --num-clients
# Only the variable has a value of its own.
calibrate --num-clients 5 --free epsilon0 --target-epsilon 1 -> needs --check-in-prob
calibrate {RUN} --free num-clients --target-epsilon 1 -> leaves no room for --num-clients
calibrate --num-clients 5 --target-epsilon 1 -> the variable. One of epsilon0, noise-multiplier
calibrate {RUN} --free epsilon0 --target-epsilon 1 -> leaves no room
calibrate {RUN} --free window --target-epsilon 1 -> --free window: expected
calibrate {COINS} --epsilon0 1 --free num-rounds -> one of --target-epsilon and --target-advantage
calibrate {RUN} --free num-rounds --target-epsilon 1 -> --free num-rounds leaves no room for --num-rounds
calibrate {COINS} --epsilon0 1 --free rounds --target-epsilon 1 -> --free rounds: expected one of
calibrate {COINS} --epsilon0 1 --free num-rounds --target-epsilon 0 -> --target-epsilon 0: expected
calibrate {COINS} --epsilon0 1 --free num-rounds --target-epsilon 1e-9 --view local \
    -> --target-epsilon 1e-9: no num-rounds in
calibrate --availability log.csv --free num-clients --target-epsilon 1 --epsilon0 1 -> --free num-clients:
compare {RUN} --delta 1 -> --delta 1: expected
# Check-in rates.
epsilon --epsilon0 1 --rates commas.csv -> commas.csv: line 2: '.1,20,000': expected 2 values, one a column
epsilon --epsilon0 1 --rates twice.csv -> twice.csv: line 1 has 2 columns rate: expected one
epsilon --epsilon0 1 --rates log.csv -> log.csv: line 1 has the columns available, coin: expected the column rate
epsilon --epsilon0 1 --rates missing.csv -> checkin: --rates missing.csv: No such file or directory
epsilon --epsilon0 1 --rates=./commas.csv -> checkin: --rates commas.csv: line 2: '.1,20,000': expected
epsilon --epsilon0 1 --rates two.csv --protocol shuffle -> --rates is not an option of --protocol shuffle
epsilon --epsilon0 1 --largest-rate .1 --expected-check-ins 2 --num-clients 90 --protocol shuffle \
    -> --largest-rate is not an option of --protocol shuffle
epsilon --epsilon0 1 --rates two.csv --num-clients 3 -> --num-clients 3: expected 2
epsilon --epsilon0 1 --rates two.csv --check-in-prob 0.1 -> give one of --check-in-prob, --rates
epsilon --epsilon0 1 --rates two.csv --largest-rate 0.1 -> leaves no room
epsilon --epsilon0 1 --rates two.csv --client-rate 0.05 -> --client-rate 0.05: expected at least 0.1
epsilon --epsilon0 1 --smallest-rate 0.1 --largest-rate 0.2 -> goes with --largest-rate and --num
epsilon --epsilon0 1 --smallest-rate 0.3 --largest-rate 0.2 --num-clients 3 -> --smallest-rate 0.3: expected
# Sweeps.
sweep --num-clients=10 -> --out is needed: output file
sweep --outt a.csv -> --out is needed, not --outt: output file
sweep --out --json -> --out without a value: expected a path
sweep --out a.csv --num-clients 1e3:1e9:logx --epsilon0 2 -> --num-clients 1e3:1e9:logx: expected
sweep --out a.csv --num-clients 1e3 --check-in-prob .1 -> --epsilon0: expected exactly one of
sweep --out a.csv --check-in-prob .1 --epsilon0 1 \
    -> --num-clients: expected a value, which --what 'bracket' with protocol ShuffledCheckIn needs
sweep --out a.csv --num-clients -1,x --epsilon0 2 -> --num-clients -1,x: expected numbers
epsilon {RUN} --view -.5 -> --view -.5: expected one of local
sweep --out no/a.csv --protocol shuffle --num-clients 9 --epsilon0 2 -> folder
sweep --out a.csv --protocol shuffle --num-clients 9 --epsilon0 2 --plot a.png -> nothing to draw
sweep --out a.csv --table missing.csv -> checkin: --table missing.csv: No such file or directory
sweep --out a.csv --table none.csv -> --table none.csv: a table without rows
# Files that are to be written.
sweep --num-clients 9 --out rows.xls -> --out rows.xls: expected a name ending in .csv or .parquet
sweep --num-clients 1e4 1e6 --out a.csv -> 1e6: one word too many; values of a list stand between commas
sweep --table rows.xls --out rows.csv -> --table rows.xls: expected a name ending in .csv or .parquet
sweep --num-clients 9 --out a.csv --plot a.xls -> --plot a.xls: expected a name ending in
sweep --num-clients 9 --out a.csv --plot nodir/x.png -> --plot nodir/x.png: expected a file in an existing
report good.json --out . -> --out .: expected a file
report good.json --out nodir/x.html -> --out nodir/x.html: expected a file in an existing folder
report good.json --out good.json -> --out good.json: that file is an input of the page
report good.json --out page.html -> page.html exists and was not written by checkin report
ledger add nodir/led.json {RUN} -> nodir/led.json: No such file or directory
ledger add . {RUN} -> .: Is a directory
# Files that are read.
ledger add cut.json {RUN} -> cut.json: no ledger
ledger add list.json {RUN} -> list.json: no ledger: expected an object
ledger show missing.json -> missing.json: No such file
ledger show empty.json -> empty.json: no ledger
ledger show old.json -> old.json: no ledger: schema=1: expected 3
ledger show nothing.json -> nothing.json: no entry that counts
ledger add --num-clients 5 -> LEDGER is needed: the file (see checkin ledger add --help)
report . --delta 1e-6 -> --delta goes with a ledger
report good.toml --deployment empty.json -> expected a table [deployment]
report good.json --deployment deployment.toml -> deployment.toml:
report good.toml --delta 1e-6 -> --delta is given by the plan
report missing -> missing: no such folder or file
statement nothing.json -> nothing.json: no guarantee: nothing was composed
statement good.json --last log.csv -> --last log.csv: expected a statement made by
statement log.csv -> log.csv: expected the folder of a run, a ledger (.json) or a plan (.toml)
statement good.json --out nodir/x.txt -> --out nodir/x.txt: expected a file in an existing folder
budget log.csv -> checkin budget is for the folder of a run, or a ledger
ledger remove good.json 2 -> good.json: entry 2: expected one of 1 to 1
ledger add good.json --run missing -> --run missing: no such folder
train digits --run-dir new --after good.json -> --after good.json: a file, not the folder of a run
ledger add good.json {RUN} --on June -> --on June: expected a date such as
budget . -> no such file; is this the folder of a run?
plan typo.toml -> typo.toml: [fleet] has no availble; did you mean available?
plan clients.toml -> clients.toml: [fleet] has no num_clients; did you mean available?
plan half.toml -> and numbers begin with a digit, as in 0.1
plan cut.toml -> cut.toml: Expected '=' after a key
plan latin.toml -> latin.toml: expected a text in UTF-8
plan unquoted.toml -> texts stand between quotes, as in view = "messages"
plan god.toml -> god.toml: No such file or directory; did you mean good.toml?
epsilon --availability lg.csv --epsilon0 1 -> lg.csv: No such file or directory; did you mean log.csv?
plan delta.toml -> delta.toml: delta=2.0: expected
plan good.json -> good.json: a plan is a TOML file; is it a ledger? Then: checkin budget good.json
ledger show good.toml -> good.toml: a ledger is a JSON file; is it a plan? Then: checkin plan good.toml
budget god.json -> god.json: no such folder or file; did you mean good.json?
epsilon --availability log.csv --epsilon0 1 --cycles 0 -> --cycles 0: expected a whole number in [1, 500000]
epsilon {RUN} --cycles 2 -> --cycles goes with --availability
calibrate --availability log.csv --cycles 2 --free cycles --target-epsilon 1 --epsilon0 1 \
    -> --free cycles leaves no room for --cycles
epsilon --availability none.csv --epsilon0 1 -> none.csv: expected at least one line
epsilon --availability coin.csv --epsilon0 1 -> coin.csv: line 3: coin=1.5
epsilon --availability half.csv --epsilon0 1 -> half.csv: line 2: available=9.5
epsilon --availability words.csv --epsilon0 1 -> words.csv: line 2
epsilon --availability log.csv {RUN} -> --availability goes with shuffled-check-in, and gives
epsilon --rates rates.csv --epsilon0 1 -> rates.csv: line 3: rate=1.7: expected a number in (0, 1]
# Other commands.
train digits -> --run-dir is needed
train digits --run-dir x --clip-norm 0 -> --clip-norm 0: expected
train digits --run-dir x --mechanism laplace --epsilon0 1 \
    -> --mechanism laplace: expected one that the trainer draws, of any, l2, one-bit
train digits --run-dir x --microbatch 7 -> --microbatch 7
train digits --run-dir x --checkpoint-every -1 -> --checkpoint-every -1: expected a whole number in [0,
train digits --run-dir x --num-clients 1e12 -> at most 1e+09 clients or slots drawn at once
train digits --run-dir x --protocol fixed-window --num-slots 1e12 -> at most 1e+09 clients or slots drawn at once
train digits --run-dir x --protocol fixed-window --num-slots 5 --minibatch 6 -> --minibatch 6:
train digits --run-dir . -> not empty
train mnist --run-dir x --data-dir nowhere -> no such folder
train mnist --run-dir x --data-dir . -> neither train-images
# Figures.
figure fewer -> no figure fewer: expected one of shuffled-check-in-figure-1a,
figure random-check-ins-figure -> ; did you mean random-check-ins-figure-2?
figure {CLIENTS} -> --out is needed: a .pdf, .svg or .png file for random
figure {CLIENTS} --out a.txt -> --out a.txt: expected a name ending in .png, .svg, .pdf
figure {CLIENTS} --out no/a.pdf -> --out no/a.pdf: expected a file in an existing folder
figure {CLIENTS} --out a.pdf --data a.txt -> --data a.txt: expected a name ending in .csv
figure {CLIENTS} --out a.pdf --data no/a.csv -> --data no/a.csv: expected a file in an existing
figure {CLIENTS} --out a.pdf --source runs -> --source: expected none
figure {CURVES} --out a.pdf -> --source is needed
figure {CURVES} --out a.pdf --source no -> --source no: no such folder or file
figure {CURVES} --out a.pdf --source . -> expected run directories
figure {CURVES} --out a.pdf --source log.csv -> --source log.csv: no column setting
# Audits.
audit nowhere -> checkin: nowhere: no such folder
bench clones -> checkin: clones: expected one of clones-2021,
audit nowhere --clip-norm 2 -> --clip-norm is given by RUN_DIR
audit nowhere --num-clients 2 -> --num-clients is given by RUN_DIR
train digits --run-dir x --num-processes 2 -> --coordinator, --num-processes and --process-id go together
audit --num-clients 9 --data-dir x -> --data-dir is for the audit of a run
audit {RUN} --runs 1 -> --runs 1: expected
audit {RUN} --mechanism rappor -> --mechanism rappor: expected one that the trainer draws
flower-check --clipping-norm 0 --sensitivity 1 --epsilon 8 --delta 1e-6 -> --clipping-norm 0: expected
"""
REFUSED = [row.split(" -> ") for row in REFUSED.strip().splitlines() if not row.startswith("#")]
REFUSED = [(line.strip(), told) for line, told in REFUSED]
# A name of the library in place of an option's: name=value, at the beginning.
PYTHON = re.compile(r"^checkin: [a-z]+\w*=")


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    # Imports take long on a busy machine; that work goes on is said beside a refusal.
    monkeypatch.setattr(cli, "going_on", lambda what: contextlib.nullcontext())
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content.encode("latin-1"))
    return tmp_path


@pytest.mark.parametrize(("line", "told"), REFUSED, ids=[line for line, _ in REFUSED])
def test_one_line_in_the_options_own_names(folder, capsys, line, told):
    with pytest.raises(SystemExit) as stop:
        cli.main(line.split())
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("checkin: ")
    assert told in err
    assert len(err) < 400
    assert "Traceback" not in err
    assert "Errno" not in err
    assert not PYTHON.match(err), "the library's name of an argument"
    assert not re.search(r"\.\w+\.(tmp|lock)", err), "a file of our own"
    assert {path.name for path in folder.iterdir()} <= {*FILES}
    assert all((folder / name).read_bytes() == content.encode("latin-1") for name, content in FILES.items())


@pytest.mark.parametrize("command", ["ledger show good.json", "report good.json", "statement ''", "plan"])
def test_an_empty_word_names_nothing(folder, capsys, command):
    words = [*command.replace("''", "").replace("good.json", "").split(), ""]
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    assert "an empty word: expected a value" in err


def test_an_empty_value_names_its_option(folder, capsys):
    with pytest.raises(SystemExit):
        cli.main([*f"epsilon {RUN} --bounds".split(), ""])
    assert capsys.readouterr().err == "checkin: --bounds '': expected a value\n"


def test_what_cannot_be_written_is_named_as_typed(folder, capsys, monkeypatch):
    """Neither the lock nor the temporary file."""
    locked = folder / "locked"
    locked.mkdir()

    def denied(name, *rest):
        raise PermissionError(13, "Permission denied", str(name))

    monkeypatch.setattr("checkin_jax._files.os.open", denied)
    for line in (f"ledger add locked/led.json {RUN}", "report good.json --out locked/x.html --bounds fast"):
        with pytest.raises(SystemExit) as stop:
            cli.main(line.split())
        err = capsys.readouterr().err
        assert (stop.value.code, err.count("\n")) == (2, 1)
        assert "Permission denied" in err
        assert not re.search(r"\.\w+\.(tmp|lock|json\.lock|html\.tmp)", err)


@pytest.mark.parametrize(("epsilon", "code"), [(0.5, 0), (1e-3, 1)])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_plan_that_nothing_meets_exits_with_1(folder, capsys, epsilon, code, form):
    (folder / "plan.toml").write_text(FLEET + TARGET.replace("0.5", str(epsilon)))
    try:
        cli.main(["plan", "plan.toml", "--bounds", "fast", *form])
        ended = 0
    except SystemExit as stop:
        ended = stop.code
    out = capsys.readouterr().out
    assert ended == code
    if form != ["--json"]:
        assert f"{'no' if code else 'yes'} (quick)" in out
        assert "by fast bounds only" in out


@pytest.mark.parametrize("name", ["epsilon", "calibrate", "ledger show"])
def test_an_answer_by_quick_theorems_says_so(folder, capsys, name):
    line = {
        "epsilon": f"epsilon {RUN}",
        "calibrate": f"calibrate {COINS} --free epsilon0 --target-epsilon 1",
        "ledger show": "ledger show good.json",
    }[name]
    cli.main([*line.split(), "--bounds", "fast"])
    assert "by fast bounds only" in " ".join(capsys.readouterr().out.split())
    cli.main(line.split())
    assert "quick" not in capsys.readouterr().out
