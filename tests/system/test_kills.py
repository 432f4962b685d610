"""The commands killed with SIGKILL, at random moments and before every change of the disk: nothing lost, no half file.

The accountant is a stand-in in all processes, so that most of a run is rounds, blocks and files.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stand_in import without_progress

import checkin_jax as cj

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

PROGRAM = """
import sys
from stand_in import quick_account
from checkin_jax import cli
from checkin_jax.accounting import account
account.account = quick_account
cli.main(sys.argv[1:])
"""
RUN = (
    "--num-clients 2000 --check-in-prob .1 --seed 1 --eval-every 10 --momentum .5 --averaging .5 --num-rounds"
)
ROWS = "--what published --bound theorem-2,theorem-3 --check-in-prob .001,.1 --epsilon0 .5,1,80 --num-clients"
# Names of files and folders, and when they were written.
Files = dict[str, int]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A command that is killed and run again, in a folder of its own.

    Attributes:
      args: of the command.
      finished: whether there is nothing left to resume.
      result: what must be as in a run that was not killed; refuses anything left lying about.
      kept: what no later kill may take away.
    """

    args: str
    finished: Callable[[Files], bool]
    result: Callable[[Path], object]
    kept: Callable[[Files], set[object]]


def _files(folder: Path) -> Files:
    found = {}
    for path in folder.rglob("*"):
        try:
            found[str(path.relative_to(folder))] = path.stat().st_mtime_ns
        except FileNotFoundError:
            continue
    return found


def _training(rounds: int, every: int) -> Kind:
    def finished(files: Files) -> bool:
        return "run/report.json" in files and "run/checkpoints" not in files

    def result(folder: Path) -> object:
        assert {path.name for path in (folder / "run").iterdir()} == {
            *("config.json", "metrics.jsonl", "parameters.npz", "report.json", "report.txt")
        }
        return [(folder / "run" / name).read_bytes() for name in ("parameters.npz", "metrics.jsonl")]

    def kept(files: Files) -> set[object]:
        """The rounds up to the last checkpoint."""
        last = [int(name.rpartition("/")[2]) for name in files if re.search(r"checkpoints/\d+$", name)]
        return set(range(max(last, default=0)))

    args = f"train digits --run-dir run --resume --checkpoint-every {every} {RUN} {rounds}"
    return Kind(args, finished, result, kept)


def _sweep(sizes: int, rows: int) -> Kind:
    def finished(files: Files) -> bool:
        return "sweep.csv" in files and "sweep.csv.blocks" not in files

    def result(folder: Path) -> object:
        """All columns but `seconds`."""
        assert [path.name for path in folder.iterdir()] == ["sweep.csv"]
        columns = cj.finished_rows(folder / "sweep.csv").columns
        assert (columns["seconds"] >= 0).all()
        return {name: list(map(str, column)) for name, column in columns.items() if name != "seconds"}

    def kept(files: Files) -> set[object]:
        """The finished blocks, which are not written again."""
        return {(name, when) for name, when in files.items() if re.search(r"blocks/0\d+\.parquet$", name)}

    args = f"sweep --out sweep.csv --resume {ROWS} 1e3:1e9:log{sizes} --num-rounds 1:1e4:log5 --block-rows {rows}"
    return Kind(args, finished, result, kept)


def _report() -> Kind:
    def result(folder: Path) -> object:
        assert not list((folder / "run").glob(".*"))
        return _page(folder)

    return Kind("report run", lambda files: False, result, lambda files: set())


def _page(folder: Path) -> str:
    """The page without the names in its pictures, which are new each time."""
    text = (folder / "run" / "report.html").read_text()
    return re.sub(r'(id="|#)[a-z]+[0-9a-f]{8,}', r"\1", text)


KINDS = {
    "training": (_training(2000, 100), _training(60, 20)),
    "checkpoints": (_training(200, 1), _training(12, 1)),
    "sweep": (_sweep(120, 16), _sweep(10, 16)),
    "report": (_report(), _report()),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Of the processes, which keep what they compile as the command does."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parent), *sys.path])
    return {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, environment):
    """A folder with a run."""
    folder = tmp_path_factory.mktemp("trained")
    assert _end(_begun(_training(20, 0), folder, environment)) == ""
    return folder


def _begun(kind: Kind, folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *kind.args.split()],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[str]) -> str:
    """What it says on standard error, beside its progress."""
    said = process.communicate(timeout=600)[1]
    assert process.returncode == 0, said
    return without_progress(said)


def _timed(kind: Kind, folder: Path, environment: dict[str, str]) -> tuple[object, float]:
    """The result of a run that is left alone, and the seconds that it takes."""
    started = time.monotonic()
    assert _end(_begun(kind, folder, environment)) == ""
    return kind.result(folder), time.monotonic() - started


def _killed(kind: Kind, folder: Path, environment: dict[str, str], after: float) -> bool:
    """Kills the command `after` seconds; False if it has ended before."""
    before = _files(folder)
    process = _begun(kind, folder, environment)
    time.sleep(after)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    said = without_progress(process.communicate()[1])
    if process.returncode != -signal.SIGKILL:
        assert (process.returncode, said) == (0, "")
        return False
    now = _files(folder)
    assert kind.kept(before) <= kind.kept(now) or kind.finished(now)
    return True


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        # By default sweeps and pages are killed below, in fewer processes.
        ("checkpoints", 1),
        *(pytest.param(name, 25, marks=pytest.mark.slow) for name in KINDS),
    ],
)
def test_kills_at_random_moments_change_nothing(tmp_path, environment, trained, name, kills):
    kind, rng = KINDS[name][kills == 1], random.Random(f"{name} {kills}")

    def fresh(number: int) -> Path:
        folder = tmp_path / str(number)
        if name == "report":
            return Path(shutil.copytree(trained, folder))
        folder.mkdir()
        return folder

    right, seconds = _timed(kind, fresh(0), environment)
    number = 1
    if kills > 1:  # now everything is compiled
        again, seconds = _timed(kind, fresh(1), environment)
        assert again == right
        number = 2
    folder, done, in_this_one = fresh(number), 0, 0
    while done < kills:
        page, old = folder / "run" / "report.html", rng.choice(["", "an old page"])
        if name == "report" and old:
            page.write_text(old)
        if _killed(kind, folder, environment, rng.uniform(0, seconds)):
            done, in_this_one = done + 1, in_this_one + 1
            if name == "report":
                found = page.read_text() if page.exists() else ""
                assert found == old or _page(folder) == right
            elif not kind.finished(_files(folder)):
                continue
            said = _end(_begun(kind, folder, environment))
            # A finished sweep is made anew, so is a page.
            assert "has finished" in said if name in ("training", "checkpoints") else said == ""
        assert kind.result(folder) == right
        number, in_this_one = number + 1, 0
        folder = fresh(number)
    if in_this_one:
        assert _end(_begun(kind, folder, environment)) == ""
        assert kind.result(folder) == right


EVERY = """
import sys
from pathlib import Path
from stand_in import quick_account
from checkin_jax import cli
from checkin_jax.accounting import account
from checkin_jax.training.reports import run_page
from checkin_jax.training.runs import checkpoints
import test_kills
account.account = quick_account
test_kills.kill_before_changes(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path.cwd())
"""


@pytest.mark.parametrize(
    ("name", "step"),
    [
        *(("report", 2), ("sweep", 7)),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("report", "sweep", "training")),
    ],
)
def test_a_kill_before_any_change_of_the_disk_changes_nothing(tmp_path, environment, trained, name, step):
    done = subprocess.run(
        [sys.executable, "-c", EVERY, name, str(step), str(trained)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def kill_before_changes(name: str, step: int, trained: Path, folder: Path) -> None:
    """Kills a small command before its first change of a file or folder, then before change 1 + step, and so on.

    Runs in a process of its own, which JAX has no threads in yet, and forks one for each command.
    """
    kind = {"report": _report(), "sweep": _sweep(2, 60), "training": _training(4, 2)}[name]

    def fresh(number: int) -> Path:
        place = folder / str(number)
        if name == "report":
            shutil.copytree(trained, place)
            (place / "run" / "report.html").write_text("an old page")
        else:
            place.mkdir()
        return place

    right = fresh(0)
    done = _forked(kind, right, None)
    assert done == (0, ""), done
    right = kind.result(right)
    for kills in itertools.count():
        place = fresh(1 + kills)
        code, said = _forked(kind, place, 1 + kills * step)
        if code != -signal.SIGKILL:
            assert (code, said) == (0, "")
            assert kills >= 2
            return
        files = _files(place)
        finished = kind.finished(files)
        if name == "report":
            assert (place / "run" / "report.html").read_text() == "an old page"
        code, said = _forked(kind, place, None)
        assert code == 0
        assert "has finished" in said if finished and name == "training" else said == ""
        assert kind.kept(files) <= kind.kept(_files(place)) or kind.finished(_files(place))
        assert kind.result(place) == right
        shutil.rmtree(place)


def _forked(kind: Kind, folder: Path, last: int | None) -> tuple[int, str]:
    """Exit code and standard error of the command, killed before change `last`."""
    from checkin_jax import cli

    said = folder.with_suffix(".said")
    pid = os.fork()
    if not pid:
        os.chdir(folder)
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
        try:
            if last is not None:
                _kill_before(last, folder)
            cli.main(kind.args.split())
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, without_progress(said.read_text())


def _kill_before(last: int, folder: Path) -> None:
    """Counts the changes below a folder that Python is about to make in this process; the last one is not made."""
    changes, fsync = itertools.count(1), os.fsync

    def see(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            here = isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR) and below(args[0])
        elif event in ("os.remove", "os.rmdir", "os.mkdir", "os.rename"):
            here = below(args[0]) or args[-1] != -1  # of a folder that is open
        else:
            here = event == "tests.fsync"
        if here and next(changes) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def below(path: object) -> bool:
        return isinstance(path, str | os.PathLike) and Path(os.path.abspath(path)).is_relative_to(folder)

    def told(file: int) -> None:
        sys.audit("tests.fsync")
        fsync(file)

    os.fsync = told
    sys.addaudithook(see)
