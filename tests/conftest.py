"""Strict numerics for every test, and the tolerance policy.

Policy: float64 kernels agree with mpmath to 1e-12 relative, or to the error their docstring states; bounds are
compared one-sidedly (`upper >= exact * (1 - 1e-12)`), since a tolerance is where a wrong bound hides; nothing is
looser than 1e-9 without a comment that names the source of the error.
"""

import os
import shutil
import tempfile

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_configure(config):
    """Workers share what XLA compiles, within one run of the tests and no longer."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="checkin-jax-tests-")
        os.environ["CHECKIN_JAX_TESTS_CACHE"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    jax.config.update("jax_compilation_cache_dir", os.environ["CHECKIN_JAX_TESTS_CACHE"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    # A worker may meet a file that another has not finished: it compiles for itself.
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache entry")


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


# Kernels compile once per static shape, which no deadline should judge.
settings.register_profile("checkin", deadline=None, derandomize=True, max_examples=25, database=None)
settings.load_profile("checkin")

# One-sided comparisons allow for the rounding of the oracle itself, which works in float64.
ORACLE_ROUNDING = 1e-11


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """A worker keeps what it compiled for one file of tests, not for all: that would be gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture
def x64():
    """Kernels are called inside `jax.enable_x64(True)`, as the library does."""
    with jax.enable_x64(True):
        yield
