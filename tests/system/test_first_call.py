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
SWEEP = (
    "cj.sweep(num_clients=[500, 600], check_in_prob=0.1, num_rounds=20, epsilon0=2.0, delta=1e-6,"
    " protocol=cj.ShuffledCheckIn, bounds='fast')"
)
# Counts events of JAX; prints how many each question has caused, and both ends.
COUNT = """
import jax.monitoring
asked = []
def listen(name, *_, **__):
    if name.endswith("{event}"):
        asked.append(name)
jax.monitoring.register_event_{kind}(listen)
import checkin_jax as cj
for question in {questions}:
    asked.clear()
    g = eval(question)
    ends = (g["lower"], g["epsilon"]) if isinstance(g, cj.Sweep) else ([g.lower], [g.epsilon])
    print(len(asked), *(repr(float(sum(end))) for end in ends))
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


TOPS = "print(*sorted({name.split('.')[0] for name in sys.modules}))"
USE = "cj.account, cj.calibrate, cj.ShuffledCheckIn, cj.PureLDP"
HEAVY = {"dp_accounting", "optax", "rich", "cyclopts", "flax", "orbax", "matplotlib", "pandas", "sklearn"}


def test_the_package_imports_nothing_that_only_some_need():
    scipys = "print(*(name for name in sys.modules if name.startswith('scipy.')))"
    code = f"import sys, checkin_jax as cj; {TOPS}; {USE}; {TOPS}; cj.sweep; {TOPS}; {scipys}"
    alone, used, swept, scipy = (set(line.split()) for line in run(code))
    assert not {"jax", "numpy", "scipy"} & alone
    assert not {"pyarrow", "loky"} & used
    assert not HEAVY & swept
    assert not {"scipy.special", "scipy.signal", "scipy.stats", "scipy.optimize", "scipy.sparse"} & scipy


def test_the_command_helps_and_refuses_without_jax():
    lines = ["--help", "epsilon --help", "train digits --help", "epsilon --delta x"]
    told = run(
        "import contextlib, sys; from checkin_jax import cli\n"
        f"for line in {lines}:\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):\n"
        "        cli.main(line.split())\n"
        "    print({'jax', 'scipy'} & sys.modules.keys())"
    )
    assert told == ["set()"] * 4


# A program is a step back: it costs a second or so, once a machine, and a tenth in every process.
def test_a_bracket_compiles_nothing(monkeypatch):
    monkeypatch.setenv("CHECKIN_JAX_CACHE", "off")
    # Programs that are asked for; one that JAX finds in its own cache counts too.
    code = COUNT.format(
        event="/jax/core/compile/backend_compile_duration",
        kind="duration_secs_listener",
        questions=[HEADLINE, SLOTS],
    )
    answers = [line.split() for line in run(code)]
    assert [asked for asked, *_ in answers] == ["0", "0"]
    assert all(float(lower) <= float(upper) for _, lower, upper in answers)


def test_later_processes_compile_nothing_and_say_the_same(monkeypatch, tmp_path):
    """After two at once, which share a folder of the test, whatever JAX keeps elsewhere; one program for a bracket."""
    for name in [name for name in os.environ if name.startswith("JAX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CHECKIN_JAX_CACHE", str(tmp_path))
    code = COUNT.format(event="/cache_misses", kind="listener", questions=[HIDDEN, SWEEP])
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = [[line.split() for line in process.communicate()[0].splitlines()] for process in both]
    ends = [[line[1:] for line in answer] for answer in answers]
    assert ends[0] == ends[1]
    assert {"1"} <= {answer[0][0] for answer in answers} <= {"0", "1"}
    later = [line.split() for line in run(code)]
    assert later == [["0", *each] for each in ends[0]]
    assert not list(tmp_path.rglob("*.tmp"))


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
    assert " ".join(told) == ("False True True True" if name == "checkin" else "True True False False")
