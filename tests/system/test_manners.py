"""The command among others: pipes, terminals, signals, and processes that share what XLA compiled."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import checkin_jax
from checkin_jax import cli

pytestmark = pytest.mark.usefixtures("interruptible")
ROOT = Path(checkin_jax.__file__).parents[1]
QUICK = ["epsilon", "--num-clients", "100", "--check-in-prob", ".1", "--epsilon0", "1", "--view", "local"]


@pytest.fixture
def command(tmp_path):
    """Starts `checkin`, as the installed script does, after some lines of Python."""
    script = tmp_path / "checkin"

    def start(*args, before="", path=(), **options):
        program = f"{before}\nfrom checkin_jax.cli import main\nmain()\n"
        if not script.exists() or script.read_text() != program:  # another one may be about to read it
            script.write_text(program)
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **options.pop("environment", {})}
        environment["PYTHONPATH"] = os.pathsep.join([*map(str, path), str(ROOT), *sys.path])
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([sys.executable, str(script), *args], env=environment, text=True, **options)

    return start


@pytest.mark.parametrize("args", [["--help"], ["epsilon", "--help"], QUICK])
def test_a_terminal_without_the_letters_gets_others(monkeypatch, args):
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True))
    cli.main(args)
    out, err = (stream.buffer.getvalue().decode("ascii") for stream in (sys.stdout, sys.stderr))
    assert err == ""
    assert ("Usage: checkin" in out) == ("--help" in args)


@pytest.mark.parametrize("args", [["--help"], [*QUICK, "--json"]])
def test_a_reader_who_has_enough_ends_the_command_in_silence(command, args):
    reader, writer = os.pipe()
    os.close(reader)
    done = command(*args, stdout=writer)
    os.close(writer)
    assert (done.communicate()[1], done.returncode) == ("", 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_output_that_is_full_is_one_line(command):
    with open("/dev/full", "w") as full:
        done = command(*QUICK, stdout=full)
        err = done.communicate()[1]
    assert (done.returncode, err) == (2, "checkin: [Errno 28] No space left on device\n")


def test_an_interrupt_while_the_command_is_imported_leaves_no_traceback(command, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "cyclopts.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)\n"
    )
    done = command(*QUICK, path=[other])
    assert done.communicate() == ("", "")
    assert done.returncode == -signal.SIGINT


def test_the_library_leaves_signals_alone():
    code = "import signal; before = signal.getsignal(2); import checkin_jax; assert signal.getsignal(2) is before"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


# Jobs that take long.
_BUSY = """
import {module} as module, time
def run(*_, **__):
    print("busy", flush=True)
    time.sleep(40)
module.{name} = run
"""
_SWEPT = ["sweep", "--protocol", "shuffle", "--num-clients", "9,99", "--epsilon0", "2", "--out", "x.csv"]
_KEPT = "checkin: interrupted; finished blocks are kept: run again with --resume\n"


@pytest.mark.parametrize(
    ("args", "module", "name", "number", "code", "told"),
    [
        (QUICK, "checkin_jax.cli.accounting", "Epsilon.run", signal.SIGINT, -signal.SIGINT, ""),
        (QUICK, "checkin_jax.cli.accounting", "Epsilon.run", signal.SIGTERM, -signal.SIGTERM, ""),
        (_SWEPT, "checkin_jax.sweeps.sweep", "sweep_to_file", signal.SIGINT, 130, _KEPT),
    ],
)
def test_interrupts_end_the_command_at_once(command, tmp_path, args, module, name, number, code, told):
    running = command(*args, before=_BUSY.format(module=module, name=name), cwd=tmp_path)
    assert running.stdout.readline() == "busy\n"
    began = time.monotonic()
    running.send_signal(number)
    assert running.communicate() == ("", told)
    assert running.returncode == code
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("out", ["missing/a.png", "."])
def test_pictures_in_no_folder_are_refused_before_any_work(capsys, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    run = ["--num-clients", "1000", "--check-in-prob", ".1,.2", "--epsilon0", "1"]
    run = [*run, "--out", "rows.csv", "--plot"]
    monkeypatch.setattr("checkin_jax.sweeps.sweep.prepare", lambda **_: pytest.fail("work has begun"))
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", *run, "folder.png" if out == "." else out])
    assert stop.value.code == 2
    assert "expected a file in an existing folder" in capsys.readouterr().err


@pytest.mark.slow
def test_eight_cold_commands_share_one_cache(command, tmp_path):
    strip = "import os\nfor name in list(os.environ):\n    if name.startswith('JAX_'): del os.environ[name]"
    run = [*QUICK[:-1], "messages"]
    said = set()
    for _ in range(2):
        started = [command(*run, before=strip) for _ in range(8)]
        ends = [(one.communicate(), one.returncode) for one in started]
        assert [(err, code) for (_, err), code in ends] == [("", 0)] * 8
        said |= {out for (out, _), _ in ends}
    assert len(said) == 1
