"""Audits of the trainer: what a run is seen to leak, beside what the accountant says it may. See `audit`."""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from checkin_jax.auditing.auditor import Audit as Audit
    from checkin_jax.auditing.auditor import Finding as Finding
    from checkin_jax.auditing.auditor import audit as audit
    from checkin_jax.auditing.training_run import TrainedRun as TrainedRun

# Imported when they are used, as the trainer is.
_LATER = {"Audit": "auditor", "Finding": "auditor", "audit": "auditor", "TrainedRun": "training_run"}


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(_importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
