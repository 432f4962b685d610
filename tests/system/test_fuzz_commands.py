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

import checkin_jax as cj
from checkin_jax import cli
from checkin_jax.accounting import published
from checkin_jax.auditing.auditor import Audit, Finding, audit
from checkin_jax.auditing.placement import Placement
from checkin_jax.cli import options
from checkin_jax.sweeps import settings as sweep_settings
from checkin_jax.training.examples import data
from checkin_jax.training.examples.images import ImageTraining, image_model, train
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

KINDS = tuple(options.PROTOCOLS)


def _fields_of_protocols(needed: bool) -> dict[str, list[str]]:
    """The names of each protocol's arguments that must be given, or of the others."""
    return {
        name: [
            field.name
            for field in dataclasses.fields(kind)
            if (field.default is dataclasses.MISSING) == needed
        ]
        for name, kind in options.PROTOCOLS.items()
    }


NEEDED, OPTIONAL = _fields_of_protocols(True), _fields_of_protocols(False)
_OF_PROTOCOLS = {name for each in (*NEEDED.values(), *OPTIONAL.values()) for name in each}
# One of them for all messages.
MESSAGES = ("epsilon0", "noise_multiplier")
numbers = {
    name: PROPER[name]
    for name in (*sorted(_OF_PROTOCOLS), *MESSAGES, "delta", "view", "neighboring_relation")
}


def typed(values) -> list[str]:
    """Options as words; one of None is left out, one of True is a flag."""
    words = []
    for name, value in values.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [shown(value)])]
    return words


def as_they_are(chosen: dict) -> dict:
    return chosen


@st.composite
def command_lines(draw, command, values, needed=(), flags=("--json",), first=(), settle=as_they_are):
    """Words of a command: in half of them all options go together, in the others some may not, or are wrong.

    Args:
      values: what each option may be.
      needed: options that are always given.
      settle: takes options from a dictionary of them, or changes them, where they do not go together.
    """
    kind, together = draw(st.sampled_from(KINDS)), draw(st.sampled_from([True, False]))
    chosen = {"protocol": kind}
    names = [*needed, *NEEDED[kind]]
    if together:
        others = {*values} - _OF_PROTOCOLS - {*MESSAGES} | {*OPTIONAL[kind]} & {*values}
        if kind not in ("fixed-window", "sliding-window"):
            others.discard("neighboring_relation")
        names = [
            name for name in names if name not in _OF_PROTOCOLS or name in (*NEEDED[kind], *OPTIONAL[kind])
        ]
        messages = st.sampled_from(MESSAGES)
    else:
        others, messages = {*values}, st.sampled_from([*MESSAGES, None])
    names += draw(st.lists(st.sampled_from(sorted(others)), max_size=3))
    names.append(draw(messages) if MESSAGES[0] in values else None)
    chosen |= {name: draw(values[name]) for name in dict.fromkeys(names) if name is not None}
    if together:
        chosen = settle(chosen)
    words = [command, *first, *typed(chosen), *draw(st.lists(st.sampled_from(flags), unique=True))]
    if not together and draw(st.booleans()):
        for _ in range(draw(st.integers(1, 2))):
            place = draw(st.integers(1, len(words)))
            words[place : place + draw(st.integers(0, 1))] = [draw(word)]
    return words


@case(
    CASES,
    command_lines("epsilon", numbers, flags=("--json", "--no")),
    covers=("epsilon",),
    few=8,
    many=1_500,
)
def asking_for_epsilon(words):
    found = run(words)
    if "--json" in words:
        for g in found.values():
            assert g["epsilon"] is None or 0.0 <= g["lower"] <= g["epsilon"]


@case(
    CASES,
    st.sampled_from(["random-allocation-golden", "clones-2021", "clones", "", "-1"]),
    covers=("bench",),
    few=2,
    many=20,
)
def reprinting_others_values(table):
    """A table on standard output, or a refusal."""
    run(["bench", "--json", "--", table])


@case(CASES, st.sampled_from(["views", "view", "bracket", "", "-1"]), covers=("figure",), few=2, many=20)
def asking_for_figures(name):
    """A refusal, as there is no file to draw into."""
    run(["figure", "--points", "2", "--", name])


@case(CASES, command_lines("compare", numbers), covers=("compare",), few=2, many=100)
def asking_to_compare(words):
    found = run(words)
    if "--json" in words:
        assert {row["validity"] for row in found[:2]} == {"certified"}


free = st.sampled_from(
    ["epsilon0", "noise-multiplier", "check-in-prob", "num-rounds", "num-epochs", "num-clients", "window"]
)


def free_of_this_protocol(chosen: dict) -> dict:
    """What is calibrated is a variable of the protocol, or of the messages and then not given."""
    name = chosen["free"].replace("-", "_")
    if name not in (*MESSAGES, *NEEDED[chosen["protocol"]], *OPTIONAL[chosen["protocol"]]):
        name = chosen["free"] = MESSAGES[0]
    return {key: value for key, value in chosen.items() if name not in MESSAGES or key not in MESSAGES}


@case(
    CASES,
    command_lines(
        "calibrate",
        numbers | {"free": free, "target_epsilon": PROPER["target_epsilon"]},
        needed=("free", "target_epsilon"),
        settle=free_of_this_protocol,
    ),
    covers=("calibrate",),
    few=4,
    many=300,
)
def asking_to_calibrate(words):
    found = run(words)
    if "--json" in words:
        assert found["guarantee"]["epsilon"] <= float(words[words.index("--target-epsilon") + 1])


# Tables to sweep over, right and broken.
cells = st.one_of(
    st.sampled_from(["1000", "0.1", "2", "1e-6", "messages", "", "x", "nan", "1e999", '"']), word
)
tables = st.one_of(
    st.just("num_clients,check_in_prob,epsilon0\n1000,0.1,1\n2000,0.5,x\n"),
    st.tuples(
        st.lists(st.sampled_from([*sweep_settings.NAMES, "error", "epsilon", "a", ""]), max_size=5),
        st.lists(st.lists(cells, max_size=5), max_size=4),
    ).map(lambda drawn: "\n".join(",".join(row) for row in [drawn[0], *drawn[1]])),
    st.binary(max_size=60),
)


def _axis_words(name: str) -> st.SearchStrategy[str]:
    return test_fuzz.axis_of(name).filter(lambda value: not isinstance(value, list)).map(shown)


not_axis_words = test_fuzz.not_an_axis.map(shown).filter(lambda text: "\0" not in text)


def sweep_words(drawn) -> list[str]:
    """A sweep of test_fuzz.py as a command."""
    values, out, flags = drawn
    kinds = {kind: name for name, kind in options.PROTOCOLS.items()}
    return ["sweep", "--out", out, *typed(values | {"protocol": kinds[values["protocol"]]}), *flags]


def written_here(chosen: dict) -> dict:
    """A file that can be written, and nothing that wants others of its kind beside it."""
    alone = ("block_rows", "table", "plot_axis")
    return {key: value for key, value in chosen.items() if key not in alone} | {"out": "a.csv"}


axes = {
    name: st.one_of(_axis_words(name), _axis_words(name), not_axis_words) for name in sweep_settings.NAMES
}
sweep_options = axes | {
    "what": st.sampled_from(["bracket", "rdp", "published", "published", "calibration"]),
    "out": st.one_of(st.sampled_from(["a.csv", "a.parquet", "a.txt", "a", "no/a.csv"]), word),
    "free": free,
    "block_rows": st.one_of(whole(100), word),
    "table": st.sampled_from(["table.csv", "table.parquet", "nowhere.csv", "table.xls"]),
    "plot": st.sampled_from(["a.png", "a.svg", "a.bmp"]),
    "plot_axis": st.sampled_from(["num_clients", "epsilon0", "a"]),
}


@case(
    CASES,
    st.one_of(
        st.tuples(
            test_fuzz.sweeping_arguments(_axis_words, not_axis_words),
            st.sampled_from(["a.csv", "a.parquet"]),
            st.lists(st.sampled_from(["--json", "--resume"]), unique=True),
        ).map(sweep_words),
        command_lines(
            "sweep", sweep_options, needed=("out",), flags=("--json", "--resume"), settle=written_here
        ),
    ),
    tables,
    covers=("sweep",),
    few=6,
    many=500,
)
def asking_to_sweep(words, table):
    content = table if isinstance(table, bytes) else table.encode()
    for name in ("table.csv", "table.parquet"):
        Path(name).write_bytes(content)
    shutil.rmtree("a.csv.blocks", ignore_errors=True)
    found = run(words)
    if "--json" in words:
        assert 0 <= found["errors"] <= found["rows"]


def few(high: int) -> st.SearchStrategy[int]:
    """What trains in a moment."""
    return st.integers(1, high)


training_options = {
    "num_clients": few(200),
    "check_in_prob": spread(1e-3, 1.0),
    "num_rounds": few(3),
    "drop_out_prob": PROPER["drop_out_prob"],
    "num_slots": few(20),
    "window": few(20),
    "num_epochs": few(2),
    "empty_slots": PROPER["empty_slots"],
    "epsilon0": spread(1e-5, 50.0),
    "noise_multiplier": PROPER["noise_multiplier"],
    "minibatch": few(20),
    "learning_rate": spread(1e-9, 1e30),
    "clip_norm": spread(1e-6, 1e6),
    "decay": st.sampled_from(["linear", "constant"]),
    "momentum": st.floats(0.0, 0.99),
    "averaging": st.floats(0.0, 0.99),
    "simulate": st.sampled_from(["aggregate", "messages"]),
    "delta": spread(1e-300, 0.99),
    "target_epsilon": spread(1e-9, 1e9),
    "target_view": st.sampled_from(["local", "messages", "aggregate"]),
    "eval_every": few(5),
    "target_accuracy": spread(1e-3, 1.0),
    "seed": st.integers(0, 2**128),
    "records_per_client": few(3),
    "local_steps": few(2),
    "local_learning_rate": spread(1e-3, 1.0),
}


def trained_together(chosen: dict) -> dict:
    """Several local steps have a step size, one has none; the data are the package's own."""
    chosen = {key: value for key, value in chosen.items() if key not in ("data_dir", "local_learning_rate")}
    if chosen.get("local_steps", 1) > 1:
        chosen["local_learning_rate"] = 0.1
    return chosen


@st.composite
def training_lines(draw):
    words = draw(
        command_lines(
            "train",
            training_options
            | {"checkpoint_every": few(3), "keep_checkpoints": few(3), "data_dir": st.just("nowhere")},
            needed=("num_rounds",),
            flags=("--json", "--resume"),
            first=(draw(st.sampled_from([*["digits"] * 6, "mnist", "faces"])),),
            settle=trained_together,
        ).filter(
            lambda words: not any(re.search(r"\d{4}|\de\+?\d", w) for w in words[2::2] if "seed" not in w)
        )
    )
    return [*words, "--run-dir", draw(st.sampled_from([*["run"] * 5, "used", "file", "run/deep"]))]


@case(CASES, training_lines(), covers=("train",), few=3, many=100)
def asking_to_train(words):
    shutil.rmtree("run", ignore_errors=True)
    Path("used").mkdir(exist_ok=True)
    Path("used", "something").write_text("")
    Path("file").write_text("")
    if "mnist" in words and "--data-dir" not in words:
        words = [*words, "--data-dir", "nowhere"]
    found = run(words)
    if "--json" in words:
        for g in found["guarantees"].values():
            assert g["epsilon"] is None or 0.0 <= g["lower"] <= g["epsilon"]


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


weights = st.one_of(spread(1e-9, 1e9).map(str), word)


@case(
    CASES,
    st.one_of(word, st.sampled_from(["epsilon", "clones", "view"])),
    covers=("explain",),
    few=20,
    many=1_000,
)
def asking_for_a_word(term):
    run(["explain", "--", term])


@case(
    CASES,
    st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b"[]", b"{}", b"[" * 2_000])), max_size=2),
    covers=("verify",),
    few=20,
    many=1_000,
)
def asking_to_verify(contents):
    pytest.importorskip("flint", reason="python-flint is not installed")
    for place, content in enumerate(contents):
        Path(f"{place}.json").write_bytes(content)
    with pytest.raises(Refused):
        run(["verify", *(f"{place}.json" for place in range(len(contents)))])


@case(
    CASES,
    st.tuples(weights, weights, weights, st.one_of(st.just("1e-5"), word)),
    covers=("flower-check",),
    few=20,
    many=1_000,
)
def asking_flower(values):
    names = ("--clipping-norm", "--sensitivity", "--epsilon", "--delta")
    pairs = [part for name, value in zip(names, values) for part in (name, value)]
    found = run(["flower-check", *pairs, "--json"])
    assert found["noise_std"] is None or found["noise_std"] >= 0.0


@case(
    CASES,
    st.tuples(
        st.sampled_from(["a.json", "a.json", "a.json", "", ".", "no/a.json"]),
        *(st.one_of(st.just(usual), st.just(usual), word) for usual in ("0.1", "1", "1e-5")),
    ),
    covers=("ledger",),
    few=6,
    many=200,
)
def asking_a_ledger(values):
    file, rate, epsilon0, delta = values
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / file)
        run(["ledger", "add", path, "--num-clients", "100", "--check-in-prob", rate, "--epsilon0", epsilon0])
        run(["ledger", "show", path, "--bounds", "fast", "--delta", delta, "--json"])


@case(
    CASES,
    st.tuples(
        *(st.one_of(st.just(usual), st.just(usual), word) for usual in ("[100, 50]", "0.1", "1e-5", "1.0"))
    ),
    covers=("plan",),
    few=6,
    many=200,
)
def asking_for_a_plan(values):
    available, coin, delta, epsilon0 = values
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.toml"
        text = f"[fleet]\navailable = {available}\ncheck_in_prob = {coin}\n[target]\ndelta = {delta}\n"
        plan.write_text(f"{text}[[message]]\nepsilon0 = {epsilon0}\n", encoding="utf-8", errors="replace")
        run(["plan", str(plan), "--json"])


# Of runs that there are, test_statement.py: epsilons of the stand-in have no profile.
@case(
    CASES,
    st.sampled_from(["text", "json", "registry", "model-card", "html", "x", ""]),
    word,
    covers=("statement",),
    few=3,
    many=100,
)
def asking_for_a_statement(kind, folder):
    run(["statement", f"no-{folder}", "--format", kind])


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


audit_options = {
    name: training_options[name]
    for name in (
        "num_clients",
        "check_in_prob",
        "num_rounds",
        "num_slots",
        "window",
        "num_epochs",
        "empty_slots",
        "epsilon0",
        "noise_multiplier",
        "minibatch",
        "clip_norm",
        "simulate",
    )
} | {
    "delta": PROPER["delta"],
    "view": PROPER["view"],
    "confidence": spread(0.01, 0.99),
    "seed": st.integers(0, 2**128),
    "data_dir": st.just("nowhere"),
}


@case(
    CASES,
    command_lines("audit", audit_options | {"runs": few(60)}, needed=("runs",)),
    covers=("audit",),
    few=2,
    many=100,
)
def asking_for_an_audit(words):
    found = run(words)
    if "--json" in words:
        assert all(finding["audit_lower"] >= 0.0 for finding in found["findings"])


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
