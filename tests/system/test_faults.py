"""Full and read-only disks, clocks that jump, two writers of one file: one clear line, and nothing saved is lost."""

from __future__ import annotations

import builtins
import errno
import io
import itertools
import json
import math
import os
import re
import shutil
import time
from pathlib import Path
from typing import IO, Any

import pytest
from stand_in import quick_account, without_progress

import checkin_jax as cj
from checkin_jax import _files, cli
from checkin_jax.sweeps.tables import Store
from checkin_jax.training.runs.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

TRAIN = "train digits --num-clients 1000 --check-in-prob .03 --num-rounds 12 --seed 1 --eval-every 5 --run-dir run"
CHECKPOINTS = "--checkpoint-every 3 --resume"
SWEEP = "sweep --what published --bound theorem-2,theorem-3 --num-clients 1e3:1e9:log20 --check-in-prob .1"
SWEEP = f"{SWEEP} --epsilon0 .5,80 --block-rows 16 --resume --out"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Where the commands run, with an instant accountant and no cache of the user's."""
    monkeypatch.setattr("checkin_jax.accounting.account.account", quick_account)
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run that met no fault."""
    folder = tmp_path_factory.mktemp("trained")
    _written(folder, TRAIN)
    return folder / "run"


@pytest.fixture(scope="module")
def space(tmp_path_factory, trained):
    """Bytes that the same run with checkpoints writes."""
    folder = tmp_path_factory.mktemp("checkpoints")
    written = _written(folder, f"{TRAIN} {CHECKPOINTS}")
    assert _outcome(folder / "run") == _outcome(trained)
    return written


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The file of a sweep that met no fault, and the bytes that it wrote for it."""
    folder = tmp_path_factory.mktemp("swept")
    written = _written(folder, f"{SWEEP} rows.csv")
    return folder / "rows.csv", written


def _written(folder: Path, command: str) -> int:
    """Bytes that a command writes in a folder; with an instant accountant."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("checkin_jax.accounting.account.account", quick_account)
        patch.chdir(folder)
        disk = Disk(patch, folder)
        cli.main(command.split())
    return disk.used


def _rows(path: Path) -> dict[str, list[str]]:
    """All columns but `seconds`, which are times."""
    columns = cj.finished_rows(path).columns
    seconds = columns["seconds"]
    assert ((seconds >= 0) & (seconds < 600)).all()
    return {name: list(map(str, column)) for name, column in columns.items() if name != "seconds"}


def _outcome(run: Path) -> list[bytes]:
    assert not list(run.glob(".*"))
    return [(run / name).read_bytes() for name in ("metrics.jsonl", "parameters.npz", "report.txt")][:2]


def _refused(capsys, command: str) -> str:
    """What the command says in its one line."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(command.split())
    said = capsys.readouterr()
    assert (stop.value.code, said.out) == (2, "")
    told = without_progress(said.err)
    assert re.fullmatch(r"checkin: .*\n", told), said.err
    return told


class Disk:
    """Stands in for the disk below a folder, for all that Python writes there (Orbax's arrays are written by others).

    Args:
      size: bytes that can be written; what goes beyond is cut and then fails.
      number: of the error where nothing can be written at all.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, *, size: float = math.inf, number: int = 0):
        self.used, self._size, self._number, self._folder = 0, size, number, folder
        self._open, mkdir = io.open, os.mkdir

        def make(path, *args, **kwargs):
            self._refuse(path)
            return mkdir(path, *args, **kwargs)

        patch.setattr(os, "mkdir", make)
        patch.setattr(io, "open", self.open)
        patch.setattr(builtins, "open", self.open)

    def _refuse(self, path: Any) -> None:
        if self._number and self._holds(path):
            raise OSError(self._number, os.strerror(self._number), str(path))

    def _holds(self, path: Any) -> bool:
        named = isinstance(path, str | os.PathLike)
        return named and Path(os.path.abspath(path)).is_relative_to(self._folder)

    def open(
        self, file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **others
    ) -> IO[Any]:
        if not set(mode) & set("wax+") or not self._holds(file):
            return self._open(file, mode, buffering, encoding, errors, newline, **others)
        self._refuse(file)
        raw = _Limited(self, os.fspath(file), mode.replace("b", "").replace("t", ""), **others)
        stream = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return stream if "b" in mode else io.TextIOWrapper(stream, encoding, errors, newline)

    def take(self, wanted: int) -> int:
        """How many of the bytes there is room for."""
        given = int(min(wanted, self._size - self.used))
        if wanted and not given:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.used += given
        return given


class _Limited(io.FileIO):
    def __init__(self, disk: Disk, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._disk = disk

    def write(self, data) -> int:
        view = memoryview(data).cast("B")
        return super().write(view[: self._disk.take(len(view))])


SHARES = [
    *(0, 0.02, 0.3, 0.7, 0.999),
    *(pytest.param(i / 60, marks=pytest.mark.slow) for i in range(60)),
]


@pytest.mark.parametrize("share", SHARES)
def test_a_sweep_goes_on_once_there_is_space(folder, capsys, monkeypatch, swept, share):
    whole, written = swept
    shutil.copy(whole, folder)
    with monkeypatch.context() as patch:
        Disk(patch, folder, size=int(share * written))
        said = _refused(capsys, f"{SWEEP} rows.csv")
    assert re.fullmatch(
        r"checkin: No space left on device: .*rows.csv.*; finished blocks .* --resume\n", said
    )
    assert (folder / "rows.csv").read_bytes() == whole.read_bytes()
    cli.main(f"{SWEEP} rows.csv".split())
    assert _rows(folder / "rows.csv") == _rows(whole)
    assert [path.name for path in folder.iterdir()] == ["rows.csv"]


# Orbax drops what it still had to write.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.turns(2)
def test_a_run_goes_on_once_there_is_space(folder, capsys, monkeypatch, trained, space, share):
    with monkeypatch.context() as patch:
        Disk(patch, folder, size=int(share * space))
        assert "No space left on device" in _refused(capsys, f"{TRAIN} {CHECKPOINTS}")
    cli.main(f"{TRAIN} {CHECKPOINTS}".split())
    assert _outcome(folder / "run") == _outcome(trained)


def test_entropy_that_a_kill_left_is_deleted(folder, capsys, monkeypatch, trained):
    deleted = shutil.rmtree

    def kill(path, *args, **kwargs) -> None:
        if Path(path).name == ".checkpoints.gone":
            raise _KilledError
        deleted(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", kill)
        with pytest.raises(_KilledError):
            cli.main(f"{TRAIN} --checkpoint-every 5".split())
    assert (folder / "run" / ".checkpoints.gone").is_dir()
    cli.main(f"{TRAIN} --resume".split())
    assert "has finished" in capsys.readouterr().err
    assert _outcome(folder / "run") == _outcome(trained)


@pytest.mark.parametrize("old", [None, "an old page"])
def test_a_page_that_does_not_fit_is_not_there(folder, capsys, monkeypatch, trained, old):
    pytest.importorskip("matplotlib")
    shutil.copytree(trained, folder / "run")
    page = folder / "run" / "report.html"
    if old is not None:
        page.write_text(old)
    with monkeypatch.context() as patch:
        Disk(patch, folder, size=20_000)
        said = _refused(capsys, "report run")
    assert re.fullmatch(r"checkin: .*report\.html: No space left on device\n", said)
    assert (page.read_text() if page.exists() else None) == old
    cli.main(["report", "run"])
    assert page.read_text().endswith("</html>\n")
    assert not list((folder / "run").glob(".*"))


def test_a_file_that_cannot_be_synchronised_is_not_there(folder, monkeypatch):
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*a\.txt'"),
        _files.replacing(folder / "a.txt") as file,
    ):
        file.write(b"all of it")
    assert not list(folder.iterdir())


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("command", [f"{TRAIN} {CHECKPOINTS}", f"{SWEEP} rows.csv", "report old"])
def test_folders_that_cannot_be_written_get_one_line(folder, capsys, monkeypatch, trained, command, number):
    shutil.copytree(trained, folder / "old")
    before = sorted(folder.rglob("*"))
    with monkeypatch.context() as patch:
        Disk(patch, folder, number=number)
        said = _refused(capsys, command)
    assert os.strerror(number) in said
    assert re.search(r"run|rows\.csv|report\.html", said)
    assert sorted(folder.rglob("*")) == before


def test_a_folder_below_a_file_gets_one_line(folder, capsys):
    (folder / "file").touch()
    assert "file/run" in _refused(capsys, TRAIN.replace("--run-dir run", "--run-dir file/run"))
    assert "file/rows.csv" in _refused(capsys, f"{SWEEP} file/rows.csv")


def test_a_run_directory_that_fails_half_way_is_not_locked(folder, monkeypatch):
    (folder / "run").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("checkin_jax.training.runs.run_directory.METRICS", "nowhere/metrics.jsonl")
        with pytest.raises(FileNotFoundError):
            RunDirectory(folder / "run")
    assert not list((folder / "run").iterdir())
    with RunDirectory(folder / "run"):
        pass


def test_two_writers_of_one_file_do_not_mix(folder):
    path = folder / "a.txt"
    with _files.replacing(path) as first:
        first.write(b"first")
        with pytest.raises(BlockingIOError, match=r"a\.txt': another process"), _files.replacing(path):
            pass
        first.write(b" only")
    assert path.read_bytes() == b"first only"
    (folder / ".a.txt.tmp").write_bytes(b"a longer rest of a writer that was killed")
    with _files.replacing(path) as second:
        second.write(b"second")
    assert path.read_bytes() == b"second"
    assert [path.name for path in folder.iterdir()] == ["a.txt"]


def test_the_second_command_is_told_of_the_first(folder, capsys, trained):
    with RunDirectory(folder / "run"):
        assert "run: in use by another process" in _refused(capsys, f"{TRAIN} --resume")
    with Store(Path("rows.csv"), {}, resume=False):
        said = _refused(capsys, f"{SWEEP} rows.csv")
    assert said == "checkin: --out rows.csv: in use by another process\n"
    with _files.replacing(trained / "report.html") as page:
        assert "another process is writing it" in _refused(capsys, f"report {trained}")
        page.write(b"of the first")
    assert (trained / "report.html").read_bytes() == b"of the first"
    (trained / "report.html").unlink()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_systems_without_locks_do(folder, monkeypatch, number):
    def flock(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with _files.replacing(folder / "a.txt") as file:
        file.write(b"all of it")
    assert (folder / "a.txt").read_bytes() == b"all of it"
    monkeypatch.setattr("fcntl.flock", lambda *args: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"), _files.replacing(folder / "b.txt"):
        pass


@pytest.fixture(params=[[-3600.0], [3.2e7], [0.0, -3600.0, 3.2e7]], ids=["back", "ahead", "to and fro"])
def clock(request, monkeypatch):
    """The time of day jumps, at every look at it in the last case; the time since the start goes on."""
    now, jumps = time.time, itertools.cycle(request.param)
    started = now()

    def jumped() -> float:
        return started + (now() - started) + next(jumps)

    monkeypatch.setattr(time, "time", jumped)
    monkeypatch.setattr(time, "time_ns", lambda: int(jumped() * 1e9))


@pytest.mark.usefixtures("clock")
def test_clocks_that_jump_change_nothing(folder, monkeypatch, capsys, trained, swept):
    cli.main(f"{SWEEP} rows.csv".split())
    assert _rows(folder / "rows.csv") == _rows(swept[0])

    def kill(self, line) -> None:
        if line["round"] == 8:
            raise _KilledError

    with monkeypatch.context() as patch:
        patch.setattr("checkin_jax.cli.terminal.RoundBar.__call__", kill)
        with pytest.raises(_KilledError):
            cli.main(f"{TRAIN} {CHECKPOINTS}".split())
    # The files' times say that round 3 was the last.
    for step, when in ((3, 4e9), (6, 1e9)):
        for path in [top := folder / "run" / "checkpoints" / str(step), *top.rglob("*")]:
            os.utime(path, (when, when))
    capsys.readouterr()
    resumed = []
    with monkeypatch.context() as patch:
        patch.setattr(
            "checkin_jax.cli.terminal.RoundBar.__call__",
            lambda self, line: resumed.append(line["round"]),
        )
        cli.main([*f"{TRAIN} {CHECKPOINTS}".split(), "--json"])
    assert resumed == list(range(7, 13))
    assert _outcome(folder / "run") == _outcome(trained)
    assert 0 < json.loads(capsys.readouterr().out)["seconds"] < 600


class _KilledError(Exception):
    """Stands in for a kill: nothing in the library catches it."""
