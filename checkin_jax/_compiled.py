"""What XLA compiles, kept for the next process: folders of the user's cache, one a release and machine.

Two kinds of entries. The accountant keeps programs of its own (`read`, `write`), wherever it is used from; the rest of
JAX is left as the user has set it. The command lets JAX keep everything else too (`keep_compiled`). JAX writes an
entry in place, once, and its keys leave out the instructions of the CPU. So a process that is killed while it writes
leaves an entry that every later one refuses and compiles anew, and two machines that share a folder would run
code made for the other one. A reader of an entry that is half written, or damaged, compiles anew where zlib has packed
it; zstandard, which JAX prefers, has no checksum, and XLA ends the process over a bit that has flipped.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import platform
import time
import warnings
import zlib
from hashlib import sha256
from pathlib import Path
from typing import IO

from checkin_jax._files import hold, replacing

# Says where the accountant keeps its programs, or that it keeps none.
VARIABLE = "CHECKIN_JAX_CACHE"
_OFF = ("off", "0", "false", "no")
# Programs that nobody has read for so long are removed.
_KEPT_DAYS = 90
# The first byte of what zlib has packed, which JAX uses where there is no zstandard; that has checksums too.
_ZLIB = b"\x78"


def keep_compiled() -> None:
    """Turns on JAX's compilation cache, in $XDG_CACHE_HOME/checkin-jax/xla (~/.cache where that is unset).

    In it is a folder for each release and machine. What earlier commands that were killed left unfinished is removed.
    JAX_COMPILATION_CACHE_DIR, JAX_ENABLE_COMPILATION_CACHE and JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS, or the
    settings of the same name in jax.config, come first. Where the folder cannot be written nothing is kept.
    """
    import jax

    settings = jax.config.values
    if not settings["jax_enable_compilation_cache"] or settings["jax_compilation_cache_dir"] is not None:
        return
    folder = _private("xla")
    if folder is None:
        return
    with contextlib.suppress(OSError):
        _tidy(folder)
    _pack_with_checksums()
    # A full disk, or an entry that another process has not finished, costs a compilation, no more.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _pack_with_checksums() -> None:
    """Has JAX pack by zlib what it keeps from now on; other entries have other keys."""
    with contextlib.suppress(ImportError):
        from jax._src import compilation_cache

        for packer in ("zstd", "zstandard"):
            setattr(compilation_cache, packer, None)


def _private(kind: str) -> Path | None:
    """The folder of this kind for this release and machine; None where it cannot be used."""
    try:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # The specification of XDG folders: a relative one is to be ignored.
        home = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "checkin-jax" / kind
        return _usable(home, home / release_and_machine())
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None


def _usable(home: Path, folder: Path) -> Path | None:
    """The folder in its home, made if need be; None if it is not this user's alone."""
    # With `parents`, `mode` is the last one's only.
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    # What is in there is run as it is: a folder that others own or may write to is none of ours.
    mine = os.access(folder, os.R_OK | os.W_OK | os.X_OK) and _is_private(home) and _is_private(folder)
    return folder if mine else None


def programs() -> Path | None:
    """Where the accountant keeps programs: $XDG_CACHE_HOME/checkin-jax/programs (~/.cache where that is unset).

    CHECKIN_JAX_CACHE names another folder, or is "off". None: nothing is kept, as where JAX_ENABLE_COMPILATION_CACHE is
    off, the folder cannot be written, or others may write to it.
    """
    import jax

    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in _OFF or not jax.config.values["jax_enable_compilation_cache"]:
        return None
    if not chosen:
        return _private("programs")
    try:
        home = Path(chosen).absolute()
        return _usable(home, home / release_and_machine())
    except OSError:
        return None


def read(name: str) -> bytes | None:
    """What `write` has kept under this name, if it is there and whole."""
    folder = programs()
    if folder is None:
        return None
    path = folder / name
    try:
        content = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    return content[32:] if sha256(content[32:]).digest() == content[:32] else None


def write(name: str, content: bytes) -> None:
    """Keeps the content for `read` of any process; it appears whole or not at all, and nothing happens on failure."""
    folder = programs()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        with replacing(folder / name) as file:
            file.write(sha256(content).digest() + content)
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another process was quicker
                if path.stat().st_mtime < time.time() - _KEPT_DAYS * 86_400:
                    path.unlink()


@functools.cache
def release_and_machine() -> str:
    """A name for the release of jaxlib and the instructions of the CPU."""
    from jaxlib.version import __version__

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    machine = sha256(f"{platform.machine()} {flags}".encode()).hexdigest()[:12]
    return f"jaxlib-{__version__}-{machine}"


def remove_unfinished(folder: Path, since: float) -> None:
    """Removes entries, of those written after `since` (seconds since the epoch), that are not whole."""
    for entry in folder.glob("*-cache"):
        try:
            if entry.stat().st_mtime >= since and (content := entry.read_bytes())[:1] in (b"", _ZLIB):
                zlib.decompress(content)
        except zlib.error:
            entry.unlink(missing_ok=True)
        except OSError:  # another process was quicker
            continue


def _tidy(folder: Path) -> None:
    """Looks through what processes wrote that have died, and leaves a note that this one writes until it ends."""
    for note in folder.glob("*.writing"):
        with contextlib.suppress(OSError, ValueError):  # OSError: it is held by a process that is alive
            file = hold(note, str(note))
            # Dates of files are coarser than the clock.
            remove_unfinished(folder, int(note.name.split("-")[0]) / 1e9 - 2.0)
            _end(note, file)
    note = folder / f"{time.time_ns()}-{os.getpid()}.writing"
    atexit.register(_end, note, hold(note, str(note)))


def _end(note: Path, file: IO[bytes]) -> None:
    note.unlink(missing_ok=True)
    file.close()


def _is_private(folder: Path) -> bool:
    """Whether only this user may write there; always true where users have no numbers."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022
