"""What a process pays before its first answer: what it imports, what it compiles, and what it finds kept."""

import os
import subprocess
import sys

import pytest

HEADLINE = (
    "cj.account(cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800),"
    " cj.PureLDP(epsilon0=2.0), delta=1e-6)"
)
HIDDEN = (
    "cj.account(cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=100),"
    " cj.Gaussian(noise_multiplier=1.42), delta=1e-6)"
)
SLOTS = (
    "cj.account(cj.FixedWindow(num_clients=10_000, num_slots=1_000), cj.Gaussian(noise_multiplier=4.0),"
    " delta=1e-6, neighboring_relation='add-or-remove-one')"
)
# Asks for compiled programs; one that JAX finds in its own cache counts too.
COUNT = """
import jax.monitoring
asked = []
def listen(name, *_, **__):
    if name == "/jax/core/compile/backend_compile_duration":
        asked.append(name)
jax.monitoring.register_event_duration_secs_listener(listen)
import checkin_jax as cj
g = {question}
print(len(asked), repr(g.lower), repr(g.epsilon))
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


TOPS = "print(*sorted({name.split('.')[0] for name in sys.modules}))"
USE = "import sys, checkin_jax as cj; cj.account, cj.calibrate, cj.sweep, cj.ShuffledCheckIn, cj.PureLDP"


def test_the_package_imports_nothing_that_only_some_need():
    assert not {"jax", "numpy", "scipy"} & set(run(f"import sys, checkin_jax; {TOPS}"))
    heavy = {
        "dp_accounting",
        "optax",
        "rich",
        "cyclopts",
        "flax",
        "orbax",
        "matplotlib",
        "pandas",
        "sklearn",
    }
    assert not heavy & set(run(f"{USE}; {TOPS}"))
    assert not {"pyarrow", "loky"} & set(run(f"{USE.replace('cj.sweep, ', '')}; {TOPS}"))
    unused = {"scipy.special", "scipy.signal", "scipy.stats", "scipy.optimize", "scipy.sparse"}
    assert not unused & set(
        run(f"{USE}; print(*(name for name in sys.modules if name.startswith('scipy.')))")
    )


@pytest.mark.parametrize("line", ["--help", "epsilon --help", "train digits --help", "epsilon --delta x"])
def test_the_command_helps_and_refuses_without_jax(line):
    told = run(
        "import contextlib, sys; from checkin_jax import cli\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):\n"
        f"    cli.main({line.split()})\n"
        "print({'jax', 'scipy'} & sys.modules.keys())"
    )
    assert told == ["set()"]


# More is a step back: every program costs a second or so, once a machine, and a tenth in every process.
@pytest.mark.parametrize(("question", "most"), [(HEADLINE, 0), (HIDDEN, 1), (SLOTS, 0)])
def test_a_bracket_compiles_few_programs(question, most, monkeypatch):
    monkeypatch.setenv("CHECKIN_JAX_CACHE", "off")
    asked, lower, upper = run(COUNT.format(question=question))
    assert int(asked) <= most
    assert float(lower) <= float(upper)


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A folder of the test, whatever JAX keeps elsewhere."""
    for name in [name for name in os.environ if name.startswith("JAX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CHECKIN_JAX_CACHE", str(tmp_path))
    return tmp_path


def misses(question):
    """Code that counts what is compiled because JAX's cache has not got it."""
    return COUNT.format(question=question).replace(
        "register_event_duration_secs_listener(listen)",
        "register_event_listener(lambda name, **_: asked.append(name) if name.endswith('/cache_misses') else None)",
    )


def test_a_later_process_compiles_nothing_and_says_the_same(kept):
    code = misses(HIDDEN)
    first = run(code)
    assert first[0] == "1"
    assert run(code) == ["0", *first[1:]]


def test_a_later_process_has_the_programs_of_sweeps_too(kept):
    sweep = (
        "cj.sweep(num_clients=[500, 600], check_in_prob=0.1, num_rounds=20, epsilon0=2.0, delta=1e-6,"
        " protocol=cj.ShuffledCheckIn, bounds='fast')"
    )
    code = misses(sweep).replace("g.lower", "g['lower'].sum()").replace("g.epsilon", "g['epsilon'].sum()")
    first = run(code)
    assert run(code) == ["0", *first[1:]]


def test_two_processes_at_once_share_a_folder(kept):
    code = misses(HIDDEN)
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = [process.communicate()[0].split() for process in both]
    assert answers[0][1:] == answers[1][1:]
    assert run(code) == ["0", *answers[0][1:]]
    assert not list(kept.rglob("*.tmp"))


@pytest.mark.parametrize("name", ["checkin", "notebook"])
def test_the_command_looks_for_garbage_only_while_it_works(name):
    """Not while it imports, not when it ends; whoever imports the package is left as they are."""
    told = run(
        f"import gc, sys; sys.argv = ['{name}', '--version']; from checkin_jax import cli; before = gc.isenabled()\n"
        "from unittest import mock\n"
        "with mock.patch.object(cli, '_run', lambda args: print(before, gc.isenabled(), gc.get_freeze_count() > 0)):\n"
        "    cli.main()\n"
        "print(gc.get_freeze_count() > 0)"
    )
    assert told == (
        ["False", "True", "True", "True"] if name == "checkin" else ["True", "True", "False", "False"]
    )
