"""Tests against packages that not everybody has: a file is collected where its package is installed (`make extras`)."""

import importlib
import importlib.util
import warnings

NEEDED = {
    "test_equinox.py": "equinox",
    "test_flwr.py": "flwr",
    "test_frames.py": "polars",
    "test_haiku.py": "haiku",
    "test_jax_privacy.py": "jax_privacy",
}
collect_ignore = [file for file, package in NEEDED.items() if importlib.util.find_spec(package) is None]

# What their dependencies warn of at import is not about this package.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for package in NEEDED.values():
        if importlib.util.find_spec(package) is not None:
            importlib.import_module(package)
