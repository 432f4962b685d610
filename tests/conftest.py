"""Strict numerics for every test, and the tolerance policy.

Policy: float64 kernels agree with mpmath to 1e-12 relative, or to the error their docstring states; bounds are
compared one-sidedly (`upper >= exact * (1 - 1e-12)`), since a tolerance is where a wrong bound hides; nothing is
looser than 1e-9 without a comment that names the source of the error.
"""

import contextlib
import datetime
import functools
import importlib
import os
import signal
import time
from pathlib import Path
from unittest import mock

import jax
import pytest
import shapes
from hypothesis import settings

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Before anything imports the kernels. In NumPy checks take as long as they do: tests/unit/test_shapes.py asks for them.
if os.environ.get(shapes.VARIABLE):
    shapes.install()

from checkin_jax import _compiled, _progress  # noqa: E402
from checkin_jax._compiled import release_and_machine  # noqa: E402

# The line that a computation goes on would be one too many on a slow machine; its own tests set another patience.
_progress.PATIENCE = 600.0
# Entries of the kept cache that are older are compiled anew, so that it does not grow for ever.
_KEPT_DAYS = 30
# Memory that a worker needs at most, in bytes.
_WORKER_MEMORY = 5 << 30
# Every compiled kernel takes some ten memory maps of the process, of the 65,530 that Linux allows by default; XLA
# crashes when there are no more. And it takes memory.
_MOST_MAPS, _MOST_MEMORY = 20_000, 3 << 30


def _cache_folder() -> Path:
    """Where compiled kernels are kept between runs: CHECKIN_JAX_TESTS_CACHE, or a folder of the user's cache.

    Like those of the command it has a name for the release and the instructions of the CPU.
    """
    chosen = os.environ.get("CHECKIN_JAX_TESTS_CACHE", "")
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return home / "checkin-jax" / "tests" / release_and_machine()


def _forget(folder: Path) -> None:
    """Removes entries that are old."""
    for entry in folder.glob("*-cache"):
        with contextlib.suppress(OSError):  # another run of the tests was quicker
            if entry.stat().st_mtime < time.time() - _KEPT_DAYS * 86_400:
                entry.unlink()


def pytest_configure(config):
    """All workers, and the processes that tests start, share what XLA compiles, and keep it for the next run.

    A worker may meet an entry that another has not finished. Entries carry a checksum: it compiles for itself.
    """
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache entry")
    folder = _cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    os.environ[_compiled.VARIABLE] = str(folder)
    for name, value in kept.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)
    if not hasattr(config, "workerinput"):
        config.add_cleanup(lambda: _forget(folder))


def pytest_addoption(parser):
    parser.addoption(
        "--quick", action="store_true", help="what `make test` runs: not all that is marked thorough"
    )
    parser.addoption(
        "--every-turn", action="store_true", help="all cases of tests whose cases take turns by the day"
    )


def pytest_collection_modifyitems(config, items):
    """Leaves out cases that are not of today, and with --quick most of those that are marked thorough."""
    if not config.getoption("--every-turn"):
        _leave_out(config, items, _of_other_days(items))
    if config.getoption("--quick"):
        _leave_out(config, items, _thorough(items))


def _of_other_days(items):
    """Cases of tests marked turns(days) that are run on another of so many days."""
    today, found = datetime.date.today().toordinal(), set()
    for mark, group in _marked(items, "turns"):
        (days,) = mark.args
        found.update(item for place, item in enumerate(group) if (place - today) % days)
    return found


def _thorough(items):
    """Cases that are left out so that of each test marked thorough as many stay as its mark says, spread evenly."""
    left_out = set()
    for mark, group in _marked(items, "thorough"):
        but = min(mark.kwargs.get("but", 0), len(group))
        left_out.update({*group} - {group[i * len(group) // but] for i in range(but)})
    return left_out


def _marked(items, name):
    """(mark, cases) of each test that has the mark of this name."""
    cases: dict[str, tuple[pytest.Mark, list[pytest.Item]]] = {}
    for item in items:
        if mark := item.get_closest_marker(name):
            cases.setdefault(item.nodeid.partition("[")[0], (mark, []))[1].append(item)
    return cases.values()


def _leave_out(config, items, left_out):
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_xdist_auto_num_workers(config):
    """One worker a core that this process may use, as far as there is memory for them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        memory = 2 * _WORKER_MEMORY
    return max(1, min(cores, memory // _WORKER_MEMORY))


def pytest_terminal_summary(terminalreporter):
    """How many inputs the fuzz tests tried, which they leave as properties of their reports."""
    reports = [report for each in terminalreporter.stats.values() for report in each]
    found = [
        (report.nodeid.partition("::")[2], dict(report.user_properties).get("inputs"))
        for report in reports
        if getattr(report, "when", None) == "call"
    ]
    for name, inputs in sorted(pair for pair in found if pair[1]):
        terminalreporter.write_line(f"{name}: {inputs}")


@pytest.fixture(autouse=True)
def _nothing_that_a_test_has_changed_is_kept(request):
    """Tables go by the names of sources, which say nothing of what a test has put in their place."""
    if "monkeypatch" not in request.fixturenames:
        yield
        return
    before, os.environ[_compiled.VARIABLE] = os.environ[_compiled.VARIABLE], "off"
    yield
    os.environ[_compiled.VARIABLE] = before


# Kernels compile once per static shape, which no deadline should judge.
settings.register_profile("checkin", deadline=None, derandomize=True, max_examples=25, database=None)
settings.load_profile("checkin")

# One-sided comparisons allow for the rounding of the oracle itself, which works in float64.
ORACLE_ROUNDING = 1e-11


def _full() -> bool:
    """Whether this process holds so many compiled kernels that it should forget them."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            count = sum(1 for _ in maps)
        with open("/proc/self/statm") as pages:
            memory = int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return True
    return count > _MOST_MAPS or memory > _MOST_MEMORY


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """A worker forgets what it compiled when that becomes too much, and reads what it needs again from the cache."""
    yield
    if _full():
        jax.clear_caches()


@pytest.fixture(scope="module")
def compiled_in_haste():
    """XLA optimizes less, in processes that are started too: for tests that compile longer than they compute."""

    def switched(to: bool) -> None:
        jax.clear_caches()
        jax.config.update("jax_disable_most_optimizations", to)
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(to)

    switched(True)
    yield
    switched(False)


@pytest.fixture(autouse=True)
def answered_once(request):
    """Tests of commands, runs and pages do not compute brackets and privacy profiles that another one has asked for."""
    with contextlib.ExitStack() as stack:
        for name in ("compose.bracket", "privacy_profile.curve") if "system" in request.path.parts else ():
            name = f"checkin_jax.accounting.composition.{name}"
            stack.enter_context(mock.patch(name, _remembered(name)))
        yield


@functools.cache
def _remembered(name):
    """The function of this name, computed once for equal arguments."""
    module, _, attribute = name.rpartition(".")
    function = functools.cache(getattr(importlib.import_module(module), attribute))
    return lambda *values: function(*(tuple(each) if isinstance(each, list) else each for each in values))


@pytest.fixture
def interruptible():
    """SIGINT as on a terminal, also where the tests run in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def x64():
    """Kernels are called inside `jax.enable_x64(True)`, as the library does."""
    with jax.enable_x64(True):
        yield
