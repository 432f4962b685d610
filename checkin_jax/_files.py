"""Atomic writes of files, files locked by one process at a time, TOML and CSV files, names near to a missing one."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import shutil
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from checkin_jax import _validate
from checkin_jax._rounding import counted
from checkin_jax._suggest import did_you_mean, meant

try:
    import fcntl
except ImportError:  # no such locks outside POSIX systems
    fcntl = None

# Seconds that a writer who reads the file before may wait for another process.
PATIENCE = 20.0
# Errors of file systems without locks.
_LOCKLESS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def replacing(path: Path, patience: float = 0.0) -> Iterator[IO[bytes]]:
    """A stream whose file takes the name `path` once it is complete and on disk; a failure leaves nothing.

    A kill leaves `.NAME.tmp`, which the next write of that name replaces. Within the context nobody else writes it, so
    that what is written may depend on what the file holds.

    Args:
      path: of the file.
      patience: seconds to wait for another process.

    Raises:
      BlockingIOError: another process is writing it.
      OSError: it cannot be written, or is a folder; the message names it.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(f".{path.name}.tmp")
    until = time.monotonic() + patience
    with naming(path, temporary):
        while (stream := _held(temporary)) is None:
            if time.monotonic() >= until:
                raise BlockingIOError(f"{str(path)!r}: another process is writing it")
            time.sleep(0.02)
    with naming(path, temporary), stream:
        try:
            stream.truncate()
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if fcntl is None:
                stream.close()  # elsewhere it stays open, hence locked, until it has its name
            os.replace(temporary, path)
        except BaseException:
            if fcntl is None:
                stream.close()
            temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def naming(path: Path, hidden: Path | None = None) -> Iterator[None]:
    """Makes disk errors name `path`, if they name nothing or its `hidden` helper file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename is not None and str(error.filename) != str(hidden)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Context in which errors about the content of a file name it: ValueError "PATH: damaged: ..."."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: damaged: {error}") from error


def _text_of(path: Path, encoding: str = "utf-8") -> str:
    """The text in a file.

    Raises:
      ValueError: it is in another encoding; the message names the file. OSError: it cannot be read.
    """
    with naming(path):
        content = path.read_bytes()
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected a text in UTF-8") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Tables of a TOML file.

    Raises:
      ValueError: no TOML; the message names the file and the line. OSError: it cannot be read.
    """
    text = _text_of(path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f'{path}: {error}; texts stand between quotes, as in view = "messages", and numbers begin with a '
            "digit, as in 0.1"
        ) from error


def checked_table(name: str, table: Any, known: Iterable[str], needed: Iterable[str] = ()) -> dict[str, Any]:
    """The table of a TOML file, if it has the keys that are needed and none but those that are known.

    Raises:
      TypeError: no table. ValueError: an unknown or missing key; the message has the table's name.
    """
    if not isinstance(table, dict):
        raise TypeError(f"expected a table [{name}]")
    for key in table:
        if key not in known:
            raise ValueError(f"[{name}] has no {key}{did_you_mean(key, known)}")
    for key in needed:
        if not str(table.get(key, "")).strip():
            raise ValueError(f"[{name}] needs {key}")
    return table


def object_of(text: str) -> dict[str, Any]:
    """A JSON object of finite numbers; ValueError for other texts."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"expected numbers, got {word}")

    try:
        found = json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("expected fewer brackets in brackets") from error
    if not isinstance(found, dict):
        raise ValueError("expected an object")
    return found


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      ValueError: it is damaged; the message names the file. OSError: it cannot be read.
    """
    with naming(path):
        content = path.read_bytes()
    with undamaged(path):
        return object_of(content.decode("utf-8"))


def read_numbers(path: str | Path, needed: Sequence[str], more: Sequence[str] = ()) -> list[list[float]]:
    """Numbers of a CSV file, a list for each column: those needed, then those of `more` that are there.

    Columns may be in any order, among others; rows are the lines from the second on.

    Raises:
      ValueError: a missing column, a line that is empty or not numbers, with its number in the file, or no lines.
      OSError: the file cannot be read.
    """
    # Spreadsheets begin a file with a byte order mark.
    text = _text_of(Path(path), "utf-8-sig")
    header, *rows = [*csv.reader(io.StringIO(text, newline=""))] or [[]]
    header = [name.strip() for name in header]
    for name in (*needed, *more):
        if header.count(name) > 1:
            raise ValueError(f"{path}: line 1 has {header.count(name)} columns {name}: expected one")
    for name in needed:
        if name not in header:
            hint = "; columns are separated by commas" if ";" in "".join(header) else ""
            has = f"has the columns {', '.join(header)}" if any(header) else "is empty"
            raise ValueError(f"{path}: line 1 {has}: expected the column {name}{hint}")
    while rows and not rows[-1]:
        rows.pop()
    if not rows:
        raise ValueError(f"{path}: expected at least one line below the names of columns")
    places = [header.index(name) for name in (*needed, *more) if name in header]
    found = []
    for number, row in enumerate(rows, start=2):
        if len(row) > len(header):
            raise ValueError(
                f"{path}: line {number}: {_validate.shown(','.join(row))}: expected {counted(len(header), 'value')}, "
                "one a column; numbers are written without commas"
            )
        try:
            found.append([float(row[place]) for place in places])
        except (ValueError, IndexError):
            raise ValueError(
                f"{path}: line {number}: {_validate.shown(','.join(row))}: expected numbers"
            ) from None
    return [list(column) for column in zip(*found)]


def ending(endings: Sequence[str], **file: str | Path) -> Path:
    """The one keyword's path, if its name has one of these endings; ValueError otherwise."""
    ((name, given),) = file.items()
    path = Path(given)
    if path.suffix not in endings:
        named = (" or " if len(endings) == 2 else ", ").join(endings)
        raise _validate.error(f"a name ending in {named}", **{name: str(path)})
    return path


def in_folder(**file: Path) -> Path:
    """The one keyword's path, if it is that of a file in an existing folder; ValueError otherwise."""
    ((name, path),) = file.items()
    if path.is_dir() or not path.parent.is_dir():
        raise _validate.error("a file in an existing folder", **{name: str(path)})
    return path


def near_file(path: Path) -> str:
    """`; did you mean NAME?`, with a file or folder beside `path`, or nothing if no name is near."""
    try:
        beside = sorted(path.parent.iterdir(), key=lambda each: each.suffix == path.suffix)
    except OSError:
        return ""
    names = {each.stem: each.name for each in beside}
    near = meant(path.stem, names)
    return "" if near is None else f"; did you mean {names[near]}?"


def hold(path: Path, what: str, *, shared: bool = False) -> IO[bytes]:
    """Opens the lock file `path` and holds its lock until the file is closed or the process ends.

    Without locks in the operating or file system other processes are not excluded.

    Args:
      path: the lock file, created if missing.
      what: the locked object, for the error.
      shared: True if other processes may hold the lock too, all of them shared; refused without locks.

    Raises:
      BlockingIOError: another process holds it; the message has `what`.
      OSError: it cannot be written, or no shared lock is possible.
    """
    with naming(path):
        file = _held(path, alone=not shared)
    if file is None:
        raise BlockingIOError(f"{what}: in use by another process")
    return file


def _held(path: Path, alone: bool = True) -> IO[bytes] | None:
    """The file, created if missing, open and locked; None if another process has locked it."""
    while True:
        file = open(path, "w+b", opener=lambda name, flags: os.open(name, flags & ~os.O_TRUNC, 0o666))  # noqa: SIM115
        try:
            if fcntl is not None:
                fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            elif not alone:
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            if error.errno not in _LOCKLESS or not alone:
                file.close()
                raise
        # The previous holder may have deleted or renamed the file between our opening and locking it.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def delete(folder: Path) -> None:
    """Deletes a folder; a kill leaves all of it, or nothing under its name and remains for `delete_rest`."""
    delete_rest(folder)
    os.replace(folder, _going(folder))
    delete_rest(folder)


def delete_rest(folder: Path) -> None:
    """Deletes the remains of a `delete` of `folder` that was killed."""
    while _going(folder).exists():
        with contextlib.suppress(FileNotFoundError):  # another process is deleting them too
            shutil.rmtree(_going(folder))


def _going(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.gone")
