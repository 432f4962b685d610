"""Audits of the trainer: empirical lower bounds on leakage, beside certified brackets. See `audit`."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from checkin_jax import _lazy

if _TYPE_CHECKING:
    from checkin_jax.auditing.auditor import Audit as Audit
    from checkin_jax.auditing.auditor import Finding as Finding
    from checkin_jax.auditing.auditor import audit as audit
    from checkin_jax.auditing.placement import Placement as Placement
    from checkin_jax.auditing.training_run import TrainedRun as TrainedRun

# Lazy imports, as for the trainer.
__getattr__, __dir__ = _lazy.attach(
    __name__,
    {
        "Audit": "auditor",
        "Finding": "auditor",
        "audit": "auditor",
        "Placement": "placement",
        "TrainedRun": "training_run",
    },
)
