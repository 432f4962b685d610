"""Anything may be typed after `checkin`, and lie in a run's folder: an answer, or exit code 2 and one line."""

import contextlib
import dataclasses
import functools
import io
import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest
import test_fuzz
from fuzzing import (
    PROPER,
    Case,
    Refused,
    any_randomizer,
    arguments,
    call,
    case,
    odd,
    spread,
    try_few,
    try_many,
    whole,
)
from hypothesis import strategies as st
from stand_in import image_training, quick_account
from test_refusals import LEDGER

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax.accounting import published
from checkin_jax.auditing.auditor import Audit, Finding, audit
from checkin_jax.auditing.placement import Placement
from checkin_jax.training.examples import data
from checkin_jax.training.examples.networks import ImageTraining, image_model, train
from checkin_jax.training.loop import train as train_any
from checkin_jax.training.reports import recorded, run_page
from checkin_jax.training.reports.recorded import load, predictor
from checkin_jax.training.reports.report import Report
from checkin_jax.training.run import PrivateRun
from checkin_jax.training.server import suggested_learning_rate

CASES = {}
COMMANDS = {name.split()[0]: kind for name, kind in cli.COMMANDS.items()}


@pytest.fixture(autouse=True)
def kept_apart(monkeypatch, tmp_path):
    """Words that are taken for names of files make them here, and the user's cache is left alone.

    What runs cost is not the question here but in test_fuzz.py: the accountant of runs is the instant stand-in.
    """
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    monkeypatch.setattr("checkin_jax.accounting.account.account", quick_account)
    monkeypatch.chdir(tmp_path)


def run(words):
    """Runs a command: Refused if it was, its output if it answered; fails where it does anything else."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(words)
        except SystemExit as stop:
            code = stop.code or 0
    if code == 2:
        assert err.getvalue().count("\n") == 1, (words, err.getvalue())
        assert err.getvalue().startswith("checkin: ")
        assert len(err.getvalue()) < 1_500
        assert not out.getvalue()
        raise Refused
    assert code == 0 or (code == 1 and words[0] == "audit"), (words, code, err.getvalue())
    assert "nan" not in out.getvalue().lower().split()
    if "--json" in words:
        return json.loads(out.getvalue(), parse_constant=lambda name: pytest.fail(name))
    return out.getvalue()


def shown(value) -> str:
    """Any value as a word."""
    return "9" * 5000 if isinstance(value, int) and abs(value) > 10**4000 else str(value)


# What somebody may type by mistake; nothing that asks for help, and no way out of the folder.
word = st.one_of(
    odd.map(shown),
    spread(1e-9, 1e9).map(str),
    whole(1e9).map(str),
    st.text(max_size=6),
).filter(lambda text: not re.search(r"[/\0\n]|^\.+$|^-h$|^--help$", text) and text.isprintable())

# Right words of each command, and for each kind of protocol and question. Numbers of those that train are small.
LINES = [
    "epsilon --num-clients 1e4 --check-in-prob .1 --num-rounds 9 --epsilon0 1 --delta 1e-6 --view messages --json",
    "epsilon --num-clients 1e4 --check-in-prob .1 --noise-multiplier 2 --drop-out-prob .1 --num-colluding 3",
    "epsilon --protocol shuffle --num-clients 1e4 --num-rounds 9 --epsilon0 1 --json",
    "epsilon --protocol fixed-window --num-clients 1e3 --num-slots 1e3 --epsilon0 1 --empty-slots visible --json",
    "epsilon --protocol sliding-window --num-clients 1e3 --window 9 --noise-multiplier 2 --minibatch 3 --json",
    "calibrate --free epsilon0 --protocol fixed-window --num-clients 90 --num-slots 9 --target-epsilon .9 "
    "--neighboring-relation add-or-remove-one --bounds fast --json",
    "epsilon --protocol averaged-updates --num-clients 1e3 --num-slots 9 --num-epochs 2 --epsilon0 1 --json",
    "epsilon --num-clients 1e4 --largest-rate .1 --expected-check-ins 500 --epsilon0 1 --json",
    "calibrate --free noise-multiplier --num-clients 1e4 --check-in-prob .1 --target-epsilon 1 --bounds fast --json",
    "calibrate --free num-rounds --num-clients 1e4 --check-in-prob .1 --epsilon0 1 --target-epsilon 1 --json",
    "calibrate --free window --protocol sliding-window --num-clients 1e3 --epsilon0 1 --target-epsilon 1 --json",
    "calibrate --free epsilon0 --num-clients 50 --check-in-prob .5 --target-advantage .05 --json",
    "compare --num-clients 100 --check-in-prob .1 --epsilon0 1 --delta 1e-6 --json",
    "sweep --out a.csv --num-clients 1e2,1e3 --check-in-prob .1:.2:lin2 --epsilon0 1 --delta 1e-6 --json",
    "sweep --out a.parquet --what rdp --protocol shuffle --num-clients 9 --epsilon0 1 --order 2,3 --resume",
    "train digits --run-dir run --num-clients 50 --check-in-prob .3 --num-rounds 2 --epsilon0 1 --seed 1 --json",
    "train digits --run-dir run --num-clients 50 --num-rounds 2 --noise-multiplier 2 --clip-norm 1 --eval-every 2",
    "train digits --run-dir run --protocol fixed-window --num-clients 20 --num-slots 5 --minibatch 5 --momentum .5",
    "train mnist --run-dir run --data-dir nowhere",
    "audit --num-clients 9 --check-in-prob .5 --epsilon0 1 --delta 1e-6 --view local --runs 30 --json",
    "audit --protocol fixed-window --num-clients 9 --num-slots 3 --noise-multiplier 2 --runs 30 --seed 1",
    "ledger add a.json --num-clients 100 --check-in-prob .1 --epsilon0 1",
    "ledger show a.json --bounds fast --delta 1e-6 --json",
    "ledger list a.json",
    "ledger remove a.json 1",
    "statement nowhere --format json",
    "bench clones-2021",
    "figure random-check-ins-clients --out nowhere/a.pdf",
    "explain clones",
    "flower-check --clipping-norm 1 --sensitivity 1 --epsilon 8 --delta 1e-6 --json",
]
SLOW = ("train", "audit")


def few(high: int) -> st.SearchStrategy[int]:
    """What trains in a moment."""
    return st.integers(1, high)


SMALL = {
    **{name: few(200) for name in ("num_clients", "num_slots")},
    **{name: few(3) for name in ("num_rounds", "num_epochs", "eval_every", "window")},
    "runs": few(60),
    "clip_norm": spread(1e-6, 1e6),
    "momentum": st.floats(0.0, 0.99),
    "seed": st.integers(0, 2**128),
}
OPTIONS = sorted({f"--{name.replace('_', '-')}" for name in (*PROPER, *SMALL)} | {"--protocol", "--rates"})
words_in_place = st.one_of(word, word, st.sampled_from(OPTIONS))
small_words = words_in_place.filter(lambda text: not re.search(r"\d{3}|\de\+?\d", text))


@st.composite
def command_lines(draw, lines):
    """A line with other proper numbers, and in half of them up to two words put in, replaced or left out."""
    words = draw(st.sampled_from(lines)).split()
    slow = words[0] in SLOW
    known = PROPER | SMALL if slow else PROPER
    for place, option in enumerate(words[:-1]):
        values = known.get(option.removeprefix("--").replace("-", "_"))
        if option.startswith("--") and values is not None and draw(st.booleans()):
            words[place + 1] = shown(draw(values))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        place = draw(st.integers(1, len(words)))
        put = draw(st.lists(small_words if slow else words_in_place, max_size=1))
        words[place : place + draw(st.integers(0, 1))] = put
    return words


def in_order(found) -> None:
    """Every lower end of an answer is below the upper end beside it."""
    if isinstance(found, dict):
        if isinstance(found.get("epsilon"), float) and isinstance(found.get("lower"), float):
            assert 0.0 <= found["lower"] <= found["epsilon"]
        found = [*found.values()]
    for each in found if isinstance(found, list) else []:
        in_order(each)


def asked(words) -> None:
    """Runs a command whose answer, if it is JSON, must have its ends in order."""
    for left in ("run", "a.csv.blocks", "a.parquet.blocks"):
        shutil.rmtree(left, ignore_errors=True)
    Path("a.json").write_text(json.dumps(LEDGER))
    found = run(words)
    in_order(found)
    if isinstance(found, dict) and "--target-epsilon" in words:
        target = float(words[words.index("--target-epsilon") + 1])
        assert found["guarantee"]["epsilon"] <= target


# Commands that take seconds.
_SECONDS = (*SLOW, "bench", "compare")
_BY_COMMAND = {name: [line for line in LINES if line.split()[0] == name] for name in COMMANDS}
for _name, _lines in _BY_COMMAND.items():
    if _lines:
        CASES[f"checkin {_name}"] = Case(
            asked,
            st.tuples(command_lines(_lines)),
            covers=(_name,),
            few=2 if _name in _SECONDS else 10,
            many=100 if _name in _SECONDS else 1_000,
        )


# Files that commands read, right ones.
_PLAN = (
    "[fleet]\navailable = [100, 50]\ncheck_in_prob = 0.1\n"
    "[target]\nepsilon = 1.0\ndelta = 1e-5\n[[message]]\nepsilon0 = 1.0\n"
)
FILES = {
    "plan.toml": ("plan plan.toml --bounds fast --json", _PLAN.encode()),
    "ledger.json": ("ledger show ledger.json --bounds fast --json", json.dumps(LEDGER).encode()),
    "certificate.json": ("verify certificate.json", b'{"claim": {"epsilon": "0x1p+0"}, "delta": 1}'),
    "table.csv": (
        "sweep --table table.csv --protocol shuffle --delta 1e-6 --out a.csv --json",
        b"num_clients,epsilon0\n1000,1\n2000,x\n",
    ),
    "table.parquet": ("sweep --table table.parquet --delta 1e-6 --out a.csv", b"PAR1"),
    "rates.csv": (
        "epsilon --rates rates.csv --epsilon0 1 --bounds fast --json",
        b"rate,count\n0.1,20\n0.5,9\n",
    ),
    "log.csv": (
        "epsilon --availability log.csv --epsilon0 1 --bounds fast --json",
        b"available,coin\n90,.1\n40,.1\n",
    ),
}


@functools.cache
def finished() -> dict[str, bytes]:
    """The files of a small run that has ended."""
    protocol = cj.ShuffledCheckIn(num_clients=50, check_in_prob=0.3, num_rounds=3)
    config = image_training(protocol=protocol, randomizer=cj.Gaussian(noise_multiplier=2.0), eval_every=2)
    with tempfile.TemporaryDirectory() as folder:
        train(config, data.digits(), Path(folder) / "run", account_fn=quick_account)
        return {file.name: file.read_bytes() for file in (Path(folder) / "run").iterdir()}


values_of_json = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.floats(allow_nan=True),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
)


@st.composite
def damage(draw):
    """A file of a run and what happens to its bytes: cut, flipped, put in, gone, or a value of its JSON changed."""
    name = draw(
        st.sampled_from(["config.json", "metrics.jsonl", "report.json", "report.txt", "parameters.npz"])
    )
    how = draw(
        st.sampled_from(["cut", "flip", "insert", "replace", "remove", "folder", "value", "value", "value"])
    )
    return name, how, draw(st.floats(0.0, 1.0)), draw(st.binary(min_size=1, max_size=4)), draw(values_of_json)


def damaged(content: bytes, how: str, where: float, what: bytes, value) -> bytes:
    place = int(where * len(content))
    if how == "cut":
        return content[:place]
    if how == "flip":
        return (
            content[:place]
            + bytes(byte ^ 1 << what[0] % 8 for byte in content[place : place + 1])
            + content[place + 1 :]
        )
    if how == "insert":
        return content[:place] + what + content[place:]
    if how == "replace":
        return what
    if how == "keep":
        return content
    # One value of the JSON, whichever `where` falls on.
    found = list(re.finditer(rb'(?<=": )("[^"]*"|[-\d.e]+|null|true|false|\{[^{}]*\})', content))
    if not found:
        return content
    match = found[min(int(where * len(found)), len(found) - 1)]
    return content[: match.start()] + json.dumps(value).encode() + content[match.end() :]


@contextlib.contextmanager
def damaged_run(damages):
    """The folder of a run with damaged files."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        folder.mkdir()
        for name, content in finished().items():
            (folder / name).write_bytes(content)
        for name, how, *rest in damages:
            file = folder / name
            if not file.is_file():
                continue
            if how in ("remove", "folder"):
                file.unlink()
                if how == "folder":
                    file.mkdir()
            else:
                file.write_bytes(damaged(file.read_bytes(), how, *rest))
        yield folder


damages = st.lists(damage(), max_size=2)


@case(CASES, damages, covers=(recorded.read,), few=80, many=15_000)
def reading_a_run(damages):
    with damaged_run(damages) as folder:
        found = call(recorded.read, folder)
        assert found.rounds <= found.run.schedule.num_rounds
        json.dumps(found.about)


@case(
    CASES,
    st.sampled_from(sorted(FILES)),
    st.tuples(
        st.sampled_from(["keep", "cut", "flip", "insert", "replace", "value"]),
        st.floats(0.0, 1.0),
        st.one_of(st.binary(min_size=1, max_size=40), st.sampled_from([b"[]", b"{}", b"[" * 2_000])),
        values_of_json,
    ),
    covers=("plan", "verify"),
    few=40,
    many=2_000,
)
def reading_a_file(name, damage):
    line, content = FILES[name]
    if name == "certificate.json":
        pytest.importorskip("flint", reason="python-flint is not installed")
    Path(name).write_bytes(damaged(content, *damage))
    asked(line.split())


@case(
    CASES,
    damages,
    st.sampled_from(["report", "report", "audit", "budget"]),
    st.sampled_from([[], ["--json"], ["--out", "page.html"], ["--seed", "1"], ["--runs", "x"]]),
    covers=("report", "budget"),
    few=6,
    many=400,
)
def asking_about_a_run(damages, command, more):
    with damaged_run(damages) as folder:
        words = [command, str(folder), *more]
        if command == "audit" and "--runs" not in words:
            # Training again takes longer than what a damaged folder can tell.
            words += ["--runs", "20", "--view", "local"]
        found = run(words)
        if command == "report":
            text = Path(found.strip()).read_text(encoding="utf-8")
            assert text.endswith("</html>\n")
            assert not re.search(r"\bnan\b", text)


small_protocol = st.sampled_from(
    [
        cj.ShuffledCheckIn(num_clients=30, check_in_prob=0.3, num_rounds=2),
        cj.Shuffle(num_clients=20),
        cj.FixedWindow(num_clients=30, num_slots=5),
        cj.SlidingWindow(num_clients=12, window=4),
        cj.AveragedUpdates(num_clients=30, num_slots=3),
    ]
)


@case(
    CASES,
    small_protocol,
    any_randomizer,
    arguments(
        ["delta"],
        1,
        views=st.lists(PROPER["view"], min_size=1, max_size=2).map(tuple),
        runs=st.integers(20, 60),
        confidence=spread(0.01, 0.99),
        seed=st.integers(0, 2**128),
    ),
    covers=(audit, Audit, Finding, Placement, PrivateRun),
    few=2,
    many=100,
)
def auditing(protocol, randomizer, values):
    found = call(audit, call(PrivateRun, protocol=protocol, randomizer=randomizer), **values)
    assert all(finding.lower >= 0.0 for finding in found.findings)
    json.dumps(found.as_dict(), allow_nan=False)
    assert "nan" not in str(found).split()


@case(
    CASES,
    small_protocol,
    any_randomizer,
    arguments(
        [],
        1,
        clip_norm=spread(1e-6, 1e6),
        learning_rate=spread(1e-9, 1e30),
        simulate=st.sampled_from(["aggregate", "messages"]),
        eval_every=few(3),
        seed=st.integers(0, 2**128),
        records_per_client=few(3),
    ),
    arguments(
        [], 1, checkpoint_every=st.sampled_from([0, 0, 0, 1]), keep_checkpoints=few(3), resume=st.booleans()
    ),
    covers=(
        *(train, train_any, ImageTraining, Report, load, predictor, suggested_learning_rate),
        *(cj.training.Performance, cj.training.local_steps),
    ),
    few=2,
    many=100,
)
def training(protocol, randomizer, values, options):
    config = call(image_training, protocol=protocol, randomizer=randomizer, **values)
    with tempfile.TemporaryDirectory() as folder:
        report = call(train, config, data.digits(), Path(folder) / "run", account_fn=quick_account, **options)
        assert recorded.read(Path(folder) / "run").report == json.loads(json.dumps(report.as_dict()))
        assert run_page.build(recorded.read(Path(folder) / "run"), quick_account)
        model = image_model(data.digits())
        assert call(load, Path(folder) / "run", model)
        applied = dataclasses.replace(model, apply=lambda parameters, x: x)
        assert call(predictor, Path(folder) / "run", applied)(1.0) == 1.0
    assert 0.0 <= report.accuracy <= 1.0
    assert suggested_learning_rate(config.run) > 0.0


@case(
    CASES,
    st.sampled_from([cj.training.register_mechanism, cj.training.register_schedule]),
    odd,
    odd,
    covers=(
        cj.training.register_mechanism,
        cj.training.register_schedule,
        cj.training.Mechanism,
        cj.training.Schedule,
    ),
    few=40,
    many=2_000,
)
def registering(register, described, kind):
    call(call(register, described), kind)


@case(
    CASES,
    odd,
    odd,
    st.one_of(st.none(), odd),
    covers=(cj.training.Dataset, cj.training.Model, cj.auditing.TrainedRun),
    few=40,
    many=2_000,
)
def describing_data(records, test, owner):
    dataset = call(cj.training.Dataset, records=records, test=test, owner=owner)
    assert len(dataset) >= 1


@pytest.mark.parametrize("name", CASES)
def test_an_answer_or_a_refusal(name, record_property):
    try_few(CASES[name], record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_answer_or_a_refusal_many_times(name, record_property):
    try_many(CASES[name], record_property)


# Published values, of which all tables take half a minute, are printed in test_literature.py.
@pytest.mark.parametrize(
    "line", [line for line in LINES if "nowhere" not in line and line.split()[0] != "bench"]
)
def test_right_words_are_answered(line):
    asked(line.split())


def test_nothing_public_is_left_out(monkeypatch):
    """Every public function, class and command is in `covers` of a case, here or in test_fuzz.py."""
    monkeypatch.undo()  # the stand-in for `account`
    covered = {one for each in (*CASES.values(), *test_fuzz.CASES.values()) for one in each.covers}
    pages = sorted((Path(__file__).parents[2] / "docs/api").glob("*.md"))
    documented = [path for page in pages for path in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.M)]
    assert documented
    for path in documented:
        module, _, name = path.rpartition(".")
        assert getattr(__import__(module, fromlist=[name]), name) in covered, path
    for module in (cj, published):
        missing = [name for name, value in test_fuzz.public(module).items() if value not in covered]
        assert not missing
    assert set(COMMANDS) - {one for one in covered if isinstance(one, str)} == set()
