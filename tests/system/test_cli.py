"""The command: output, exit codes, and one clear line on bad input."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import re
import shlex
import subprocess
import sys
import warnings

import cyclopts
import jax
import numpy as np
import pytest
from stand_in import quick_account

from checkin_jax import _progress, cli
from checkin_jax._compiled import release_and_machine
from checkin_jax._version import __version__
from checkin_jax.accounting.compare import beside
from checkin_jax.cli.programs import described, examples, parsed
from checkin_jax.protocols import ShuffledCheckIn
from checkin_jax.randomizers import PureLDP
from checkin_jax.training.examples import data
from checkin_jax.training.server import suggested_learning_rate

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

RUN = ["epsilon", "--num-clients", "2000", "--check-in-prob", "0.1", "--num-rounds", "20", "--epsilon0", "1"]
FEW = ["--num-clients", "50", "--check-in-prob", "0.5", "--num-rounds", "2"]
PROTOCOL = ShuffledCheckIn(num_clients=2000, check_in_prob=0.1, num_rounds=20)
DIGITS = ["train", "digits", "--num-clients", "500", "--num-rounds", "2", "--check-in-prob", "0.1"]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch, tmp_path):
    """Neither this process nor a subprocess touches the user's cache or this process's settings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)


@pytest.fixture
def quick(monkeypatch):
    # By name: the package's attribute `account` is the function, not the module.
    monkeypatch.setattr("checkin_jax.accounting.account.account", quick_account)


def _refused(capsys, args: list[str]) -> str:
    """Runs a command that must be refused; returns its one line."""
    with pytest.raises(SystemExit) as stop:
        cli.main(args)
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.startswith("checkin: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert not set(err) & set("│╭╰─")
    return err


def _replaced(args: list[str], option: str, value: str) -> list[str]:
    if option not in args:
        return [*args, option, value]
    place = args.index(option) + 1
    return [*args[:place], value, *args[place + 1 :]]


@pytest.mark.parametrize(
    ("args", "same"),
    [([], ["--help"]), (["help"], ["--help"]), (["help", "ledger", "add"], ["ledger", "add", "--help"])],
)
def test_help_is_a_word_too(capsys, args, same):
    said = []
    for words in (args, same):
        cli.main(words)
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""


def test_calibrate_prints_the_value_and_what_holds_at_it(capsys):
    args = ["calibrate", *RUN[1:-4], "--free", "epsilon0", "--target-epsilon", "0.3"]
    cli.main([*args, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "epsilon0"
    assert found["guarantee"]["epsilon"] <= 0.3
    assert found["guarantee"]["randomizer"]["epsilon0"] == found["value"]
    cli.main(args)
    out = capsys.readouterr().out
    value, headline, _, head, asked, *others = out.splitlines()
    assert value == f"epsilon0 = {found['value']:.10g}"
    assert headline.startswith("epsilon <= 0.")
    assert "against somebody who sees every privatised message" in headline
    assert head.split()[:3] == ["view", "at", "least"]
    assert [line.split()[0] for line in (asked, *others[:2])] == ["messages", "local", "aggregate"]
    # The message of a client with its name is far less private, which the target does not show.
    assert float(others[0].split()[2]) > 5 * float(asked.split()[2])
    cli.main([*args, "--verbose"])
    assert "differential privacy, certified, view 'messages'" in capsys.readouterr().out


def test_calibrate_takes_the_defaults_of_epsilon(capsys):
    """Fields that are not searched: everybody takes part in a window, and a run has one round."""
    told = [
        ("--protocol fixed-window --num-clients 900 --num-slots 90 --free epsilon0", "check_in_prob", 1.0),
        ("--num-clients 900 --check-in-prob 0.1 --free epsilon0", "num_rounds", 1),
        ("--num-slots 90 --protocol fixed-window --epsilon0 1 --free num-clients", "check_in_prob", 1.0),
    ]
    for options, name, usual in told:
        cli.main(["calibrate", *options.split(), "--target-epsilon", "0.5", "--bounds", "fast", "--json"])
        assert json.loads(capsys.readouterr().out)["guarantee"]["protocol"][name] == usual


def test_compare_marks_what_is_not_a_bound(capsys, monkeypatch):
    monkeypatch.setattr("checkin_jax.accounting.compare.beside", functools.cache(beside))  # asked for twice
    # Analyses of noise: those of pure privacy compile for most of a minute (the slow tests of unit/test_compare.py).
    fleet = "--num-clients 100000 --check-in-prob .01 --num-rounds 10 --noise-multiplier 3 --delta 1e-6"
    args = ["compare", *fleet.split()]
    cli.main([*args, "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["validity"] for row in rows[:2]] == ["certified", "certified"]
    assert {"published", "invalid"} <= {row["validity"] for row in rows}
    assert all(row["reason"] for row in rows if row["validity"] == "invalid")
    upper, lower = rows[0]["epsilon"], rows[1]["epsilon"]
    assert lower <= upper
    # No published bound that stands is below what a randomizer is shown to leak.
    stands = [
        row["epsilon"] for row in rows if row["validity"] == "published" and row["direction"] == "upper"
    ]
    assert all(epsilon is None or epsilon >= lower for epsilon in stands)
    cli.main(args)
    out = capsys.readouterr().out
    assert "invalid" in out
    assert "[1] " in out


@pytest.mark.parametrize("delta", ["1e-300", "1"])
def test_epsilon_takes_the_deltas_that_account_takes(capsys, delta):
    # One round in view "local" needs no composition.
    cli.main([*_replaced(RUN, "--num-rounds", "1"), "--view", "local", "--delta", delta, "--json"])
    guarantee = json.loads(capsys.readouterr().out)["local"]
    assert guarantee["delta"] == float(delta)
    assert 0 <= guarantee["lower"] <= guarantee["epsilon"] <= 1


def test_epsilon_answers_in_one_line_and_then_in_every_view(capsys, quick):
    cli.main(RUN)
    first, empty, _, *rows = capsys.readouterr().out.splitlines()
    assert first == (
        "epsilon <= 0.04 (at least 0.02) against somebody who sees every privatised message of every round, shuffled, "
        "without names, delta 1e-6"
    )
    assert empty == ""
    assert [row.split()[:3] for row in rows[:3]] == [
        ["messages", "0.02", "0.04"],
        ["local", "0.03", "0.06"],
        ["aggregate", "0.01", "0.02"],
    ]
    assert "--verbose" in rows[-1]


@pytest.mark.parametrize("view", ["local", "messages", "aggregate"])
def test_the_view_asked_for_is_on_top_and_its_statement_alone_is_printed(capsys, quick, view):
    cli.main([*RUN, "--view", view, "--verbose"])
    first, *rest = capsys.readouterr().out.splitlines()
    words = PROTOCOL.observed(view).partition(" (")[0]
    assert f"against {words}, delta" in first
    assert sorted(row.split()[0] for row in rest[2:5]) == ["aggregate", "local", "messages"]
    assert rest[2].split()[0] == view
    assert "\n".join(rest).count("view '") == "\n".join(rest).count("replace-one") == 1
    assert f"view {view!r}" in rest[6]


def test_the_statements_are_printed_at_length_with_verbose(capsys, quick):
    cli.main([*RUN, "--verbose"])
    text = capsys.readouterr().out
    assert all(f"view {view!r}" in text for view in ("local", "messages", "aggregate"))
    assert text.count("replace-one") == 3


def test_labels_that_do_not_apply_are_one_line_or_a_row(capsys):
    assert "expected words that apply here: clones" in _refused(capsys, [*RUN, "--bounds", "subsampling"])
    noisy = [*_replaced(RUN[:-2], "--num-rounds", "1"), "--noise-multiplier", "2", "--bounds", "subsampling"]
    # Noise adds up in sums; the local view has one bound, which needs no word.
    cli.main([*noisy, "--view", "aggregate"])
    assert capsys.readouterr().out.splitlines()[3].startswith("aggregate ")


def test_the_headline_rounds_outwards():
    g = quick_account(PROTOCOL, PureLDP(epsilon0=1.0), delta=1e-6)
    g = dataclasses.replace(g, epsilon=1.234561, lower=1.234569 - 1e-3)
    assert g.headline.startswith("epsilon <= 1.2346 (at least 1.2335) against")
    assert "delta 1e-6" in g.headline
    assert "delta 1e-10" in dataclasses.replace(g, delta=1e-10).headline
    assert g.headline.endswith("delta 1e-6")
    other = dataclasses.replace(g, neighboring_relation="add-or-remove-one")
    assert other.headline.endswith("delta 1e-6, add-or-remove-one")


def test_epsilon_says_what_an_attacker_can_do(capsys, tmp_path):
    args = ["epsilon", *FEW, "--epsilon0", "1", "--view", "messages", "--bounds", "clones", "--attack"]
    cli.main(args)
    words = capsys.readouterr().out
    assert "  advantage  between 0." in words
    assert "  fpr 0.01   true positive rate of the best attack between 0.0" in words
    cli.main([*args, "--json"])
    found = json.loads(capsys.readouterr().out)["messages"]["attack"]
    assert set(found) == {"advantage", "mu", "tpr", "posterior"}


def test_train_digits_prints_and_saves_its_report(capsys, tmp_path, quick):
    folder = tmp_path / "run"
    cli.main([*DIGITS, "--run-dir", str(folder), "--seed", "3"])
    out, err = capsys.readouterr()
    assert (folder / "report.txt").read_text() in out
    assert str(folder) in out
    # No progress bar where there is no terminal.
    assert re.fullmatch(r"round 2 of 2: accuracy [\d.]+%, epsilon [\d.e-]+ \(view messages\)\n", err)
    config = json.loads((folder / "config.json").read_text())
    assert config["randomizer"] == {"kind": "Gaussian", "noise_multiplier": 2.0}
    assert config["dataset"] == "digits"


def test_train_digits_by_ldp_sgd_prints_one_json_object(capsys, tmp_path, quick):
    cli.main([*DIGITS, "--run-dir", str(tmp_path / "run"), "--epsilon0", "2", "--json"])
    out = json.loads(capsys.readouterr().out)
    assert out["config"]["randomizer"] == {"kind": "L2Mechanism", "epsilon0": 2.0}
    assert out == json.loads((tmp_path / "run" / "report.json").read_text())


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ("mnist", 1.3),
        ("mnist --num-rounds 3e3 --epsilon0 2 --seed 4 --eval-every 7", 1.3),
        ("mnist --clip-norm 1 --epsilon0 .5 --num-rounds 300 --check-in-prob .01", 0.041),
        ("mnist --num-clients 6e6", 12.8),
        ("mnist --noise-multiplier 2", 1.06),
        ("mnist --decay constant", 1.28),
        ("digits", 6.0),
        ("digits --protocol fixed-window --num-slots 2000", 0.0),
        ("digits --num-rounds 2e3", 0.75),
        ("digits --learning-rate 5", 5.0),
    ],
)
def test_a_tuned_learning_rate_is_for_its_own_setting_only(tmp_path, monkeypatch, options, rate):
    """What `--help` says: tuned for the default setting, elsewhere a rule of thumb."""
    seen = []
    monkeypatch.setattr("checkin_jax.training.examples.data.mnist", lambda folder: data.digits())
    monkeypatch.setattr(
        "checkin_jax.training.examples.networks.train", lambda config, *a, **k: seen.append(config) or {}
    )
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    folder = ["--data-dir", "mnist"] if options.startswith("mnist") else []
    cli.main(["train", *options.split(), *folder, "--run-dir", str(tmp_path)])
    (config,) = seen
    rule = suggested_learning_rate(config.run)
    expected = rate if rate in (1.3, 6.0, 5.0) else rule
    assert config.learning_rate == expected
    assert not rate or expected == pytest.approx(rate, rel=0.02)


def test_very_many_clients_can_be_trained_on(capsys, tmp_path, quick):
    options = "--num-clients 1e12 --check-in-prob 3e-11 --num-rounds 2"
    cli.main(["train", "digits", "--run-dir", str(tmp_path / "run"), *options.split()])
    assert "1,000,000,000,000" in capsys.readouterr().out


def test_too_little_memory_is_one_line(capsys, tmp_path, quick, monkeypatch):
    monkeypatch.setattr("checkin_jax.training.draws.client_records", lambda *args: [0] * 2**62)
    assert "not enough memory" in _refused(capsys, [*DIGITS, "--run-dir", str(tmp_path / "run")])


def test_train_resumes_and_refuses_to_resume_another_run(capsys, tmp_path, quick, monkeypatch):
    run = [*DIGITS, "--run-dir", str(tmp_path / "run"), "--checkpoint-every", "1", "--resume", "--seed", "1"]
    with monkeypatch.context() as patch:
        patch.setattr("checkin_jax.training.runs.session.Session.finish", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cli.main(run)
    capsys.readouterr()
    assert "config.learning_rate was " in _refused(capsys, [*run, "--learning-rate", "5"])
    cli.main(run)
    assert "Saved in" in capsys.readouterr().out
    cli.main(run)
    again = capsys.readouterr()
    told = f"run_dir={str(tmp_path / 'run')!r}: this run has finished; there is nothing to resume"
    assert again.err == f"checkin: {told}\n"
    assert again.out == f"{(tmp_path / 'run' / 'report.txt').read_text()}\nSaved in {tmp_path / 'run'}\n"
    cli.main([*run, "--json"])
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "run" / "report.json").read_text())
    # Another run than the one that has finished there.
    assert "tuning, learning_rate differ" in _refused(capsys, [*run, "--learning-rate", "5"])
    (tmp_path / "run" / "metrics.jsonl").write_text('{"round": 1, "check\n')
    assert f"{tmp_path / 'run' / 'metrics.jsonl'}: damaged" in _refused(capsys, run)
    (tmp_path / "run" / "config.json").write_text("{}")
    assert "not that of the run to be resumed" in _refused(capsys, run)


def test_train_mnist_reads_a_folder(capsys, tmp_path, quick):
    rng = np.random.default_rng(0)
    for name, shape in {
        "train-images-idx3": (50, 28, 28),
        "train-labels-idx1": (50,),
        "t10k-images-idx3": (5, 28, 28),
        "t10k-labels-idx1": (5,),
    }.items():
        header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
        content = rng.integers(10, size=shape, dtype=np.uint8).tobytes()
        (tmp_path / f"{name}-ubyte").write_bytes(header + content)
    args = ["train", "mnist", "--data-dir", str(tmp_path), "--num-clients", "50", "--num-rounds", "1"]
    cli.main([*args, "--run-dir", str(tmp_path / "run"), "--json"])
    out = json.loads(capsys.readouterr().out)
    assert out["config"]["randomizer"] == {"kind": "L2Mechanism", "epsilon0": 2.0}
    with np.load(tmp_path / "run" / "parameters.npz") as arrays:
        assert sum(arrays[name].size for name in arrays) == 26_010


def _help(capsys, *args: str) -> str:
    cli.main([*args, "--help"])
    return capsys.readouterr().out


def test_version_also_of_the_module(capsys):
    cli.main(["--version"])
    assert capsys.readouterr().out == f"checkin-jax {__version__}\n"
    done = subprocess.run(
        [sys.executable, "-m", "checkin_jax", "--version"], check=True, capture_output=True, text=True
    )
    assert done.stdout == f"checkin-jax {__version__}\n"


def application_of(name: str) -> cyclopts.App:
    """The application of one command."""
    app = cli.APP
    for word in name.split():
        app = app[word]
    return app


@pytest.mark.parametrize(("name", "kind"), cli.COMMANDS.items(), ids=lambda each: str(each))
def test_help_explains_every_option_once(capsys, name, kind):
    text = _help(capsys, *name.split())
    assert "None" not in text
    assert max(map(len, text.splitlines())) <= 80
    said = re.findall(r"^│ [* ]? {0,2}(?:[A-Z-]+ )?(--[\w-]+)", text, re.MULTILINE)
    options = application_of(name).assemble_argument_collection()
    assert sorted(said) == sorted(each.name for each in options)
    assert len(options) == len(dataclasses.fields(kind))
    assert all(text.strip(". ") for each in described(kind).values() for text in [each.text])
    below = re.split("Examples: *\n", text)[1].split()
    for example in examples(kind).splitlines():
        assert " ".join(example.split()) in " ".join(below)
        program, *words = shlex.split(example)
        assert program == "checkin"
        assert " ".join(words).startswith(name)
        assert type(parsed(cli.APP, words)()) is kind


def test_help_is_in_groups(capsys):
    text = _help(capsys, "epsilon")
    places = [text.index(f"╭─ {group} ─") for group in ("Protocol", "Randomizer", "Guarantee", "Output")]
    assert places == sorted(places)
    assert places[0] < text.index("--check-in-prob") < places[1] < text.index("--epsilon0") < places[2]
    assert places[2] < text.index("--view") < places[3] < text.index("--json")
    families = {(): _help(capsys)}
    for name in cli.COMMANDS:
        *family, last = name.split()
        assert f"\n│ {(family or [last])[0]} " in families[()]
        if tuple(family) not in families:
            families[tuple(family)] = _help(capsys, *family)
        assert f"\n│ {last} " in families[tuple(family)]


def test_errors_are_broken_between_words_of_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with pytest.raises(SystemExit):
        cli.main(["epsilon", "--protocol", "fixed"])
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 60 < len(" ".join(lines))
    assert " ".join(lines).endswith("did you mean fixed-window? (see checkin epsilon --help)")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completions_know_the_options(capsys, shell):
    cli.main(["--completion", shell])
    script = capsys.readouterr().out
    assert "num-clients" in script
    assert "averaged-updates" in script
    assert "digits" in script


def test_bash_completes_commands_options_values_and_paths(capsys, tmp_path):
    (tmp_path / "fleet.toml").touch()
    cli.main(["--completion", "bash"])
    ask = """
ask() { COMP_WORDS=(checkin "$@"); COMP_CWORD=$#; COMPREPLY=(); _checkin; echo "${COMPREPLY[*]}"; }
ask cal; ask epsilon --num-r; ask epsilon --view ""; ask ledger add file --mech; ask plan FOLDER/fl
"""
    script = capsys.readouterr().out + ask.replace("FOLDER", str(tmp_path))
    shell = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)
    command, option, values, described, path = shell.stdout.splitlines()
    assert (command, option) == ("calibrate", "--num-rounds")
    assert set(values.split()) == {"local", "messages", "aggregate"}
    assert described == "--mechanism"  # whose description is longer than a line
    assert path == str(tmp_path / "fleet.toml")


class Terminal(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_a_long_computation_is_said_once(monkeypatch, quick, terminal):
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    cli.main(RUN)
    assert terminal.getvalue().count("checkin: computing") == 1


def test_accounting_needs_no_training_stack_and_training_says_what_to_install(tmp_path):
    code = """
import sys
from checkin_jax import cli
accounting, training = sys.argv[1:12], sys.argv[12:]
cli.main(accounting)
assert not {name.split(".")[0] for name in sys.modules} & {"flax", "optax", "tensorflow"}
sys.modules["flax"] = None
cli.main(training)
"""
    quickest = [*_replaced(RUN, "--num-rounds", "1"), "--view", "local"]
    args = [sys.executable, "-c", code, *quickest, *DIGITS, "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(args, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        done.stderr
        == "checkin: training needs flax: run pip install '.[train]' in a copy of the repository\n"
    )


KEEP_COMPILED = cli.keep_compiled
CACHE_SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def settings(monkeypatch):
    """Collects the settings that would be made, and makes none."""
    made, update, mine = {}, jax.config.update, jax.config.values[CACHE_SETTINGS[0]]
    update(CACHE_SETTINGS[0], None)  # the cache that the tests share, see conftest.py
    with monkeypatch.context() as patch:
        patch.setattr(jax.config, "update", made.__setitem__)
        for name in ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "CHECKIN_JAX_CACHE"):
            patch.delenv(name, raising=False)
        yield made
    update(CACHE_SETTINGS[0], mine)


def test_compiled_kernels_are_kept_in_the_users_cache(tmp_path, monkeypatch, settings):
    KEEP_COMPILED()
    folder = tmp_path / "cache" / "checkin-jax" / "xla" / release_and_machine()
    assert settings == dict(zip(CACHE_SETTINGS, (str(folder), 0.1)))
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "5")
    settings.clear()
    KEEP_COMPILED()
    home = tmp_path / ".cache" / "checkin-jax" / "xla"
    assert settings == {CACHE_SETTINGS[0]: str(home / release_and_machine())}
    with warnings.catch_warnings(record=True) as caught:
        warnings.warn("Error writing persistent compilation cache entry for 'f': disk full", stacklevel=1)
    assert caught == []


def test_a_cache_that_cannot_be_written_is_left_alone(tmp_path, monkeypatch, settings, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    KEEP_COMPILED()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "checkin-jax" / "xla"
    folder.mkdir(parents=True)
    folder.chmod(0o777)  # anybody could put code there
    KEEP_COMPILED()
    folder.chmod(0o700)
    monkeypatch.setattr(os, "access", lambda *args: False)
    KEEP_COMPILED()
    assert settings == {}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "value"), [("compilation_cache_dir", "elsewhere"), ("enable_compilation_cache", False)]
)
def test_jaxs_own_cache_settings_come_first(tmp_path, settings, name, value):
    values = jax.config.values | {f"jax_{name}": value}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(jax.config), "values", values)
        KEEP_COMPILED()
    assert settings == {}
    assert not (tmp_path / "cache").exists()


RATES = ["epsilon", "--num-rounds", "20", "--epsilon0", "1", "--bounds", "fast", "--view", "messages"]


def test_rates_that_differ_from_a_file_or_limits(capsys, tmp_path):
    path = tmp_path / "rates.csv"
    path.write_text("rate,count\n0.05,5000\n0.3,5000\n")
    cli.main([*RATES, "--rates", str(path), "--by-rate"])
    out = capsys.readouterr().out
    assert "all clients: check-in rates up to 0.3" in out
    assert [line.split()[0] for line in out.splitlines()[-4:-2]] == ["0.05", "0.3"]
    cli.main([*RATES, "--rates", str(path), "--verbose"])
    assert "one client's record among 10,000" in capsys.readouterr().out
    cli.main([*RATES, "--rates", str(path), "--client-rate", "0.05", "--json"])
    found = json.loads(capsys.readouterr().out)["messages"]
    assert found["client_rate"] == 0.05
    assert found["protocol"]["check_in_prob"]["kind"] == "Rates"
    limits = ["--largest-rate", "0.3", "--expected-check-ins", "1600", "--num-clients", "10000"]
    cli.main([*RATES, *limits, "--by-rate", "--json"])
    table = json.loads(capsys.readouterr().out)["messages"]["by_rate"]
    assert [row["client_rate"] for row in table] == [0.3 * 0.5**k for k in range(5, -1, -1)]
    assert (np.diff([row["epsilon"] for row in table]) > 0).all()
    ends = ["--largest-rate", "0.3", "--smallest-rate", "0.16", "--num-clients", "10001"]
    cli.main([*RATES, *ends, "--json"])
    found = json.loads(capsys.readouterr().out)["messages"]["protocol"]["check_in_prob"]
    assert found == {"kind": "RateLimits", "largest": 0.3, "expected_check_ins": 1600.0}
