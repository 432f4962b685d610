"""Private training under check-in protocols: any model, any records, any optax optimizer. See `train`.

>>> import checkin_jax as cj
>>> run = cj.training.PrivateRun(
...     protocol=cj.FixedWindow(num_clients=2_000, num_slots=200, num_epochs=2, minibatch=100),
...     randomizer=cj.Gaussian(noise_multiplier=2.0),
... )
>>> run.schedule.num_rounds
4
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from checkin_jax import _lazy

if _TYPE_CHECKING:
    from checkin_jax.training.examples.data import mnist as mnist
    from checkin_jax.training.learning_rate import suggested_learning_rate as suggested_learning_rate
    from checkin_jax.training.loop import RoundError as RoundError
    from checkin_jax.training.loop import train as train
    from checkin_jax.training.model import Dataset as Dataset
    from checkin_jax.training.model import Model as Model
    from checkin_jax.training.private.clients import ClientUpdate as ClientUpdate
    from checkin_jax.training.private.clients import local_steps as local_steps
    from checkin_jax.training.private.performance import Performance as Performance
    from checkin_jax.training.private.samplers import Mechanism as Mechanism
    from checkin_jax.training.private.samplers import register_mechanism as register_mechanism
    from checkin_jax.training.reports.recorded import RecordedRun as RecordedRun
    from checkin_jax.training.reports.recorded import load as load
    from checkin_jax.training.reports.recorded import predictor as predictor
    from checkin_jax.training.reports.recorded import read as read
    from checkin_jax.training.reports.report import Report as Report
    from checkin_jax.training.run import PrivateRun as PrivateRun
    from checkin_jax.training.runs.run_directory import FinishedError as FinishedError
    from checkin_jax.training.runs.run_directory import ResumeError as ResumeError
    from checkin_jax.training.schedules.draws import EntropyError as EntropyError
    from checkin_jax.training.schedules.exported import batch_selection as batch_selection
    from checkin_jax.training.schedules.schedule import Schedule as Schedule
    from checkin_jax.training.schedules.schedule import register_schedule as register_schedule

# Lazy imports: optax and the private step are slower to import than everything else.
__getattr__, __dir__ = _lazy.attach(
    __name__,
    {
        "mnist": "examples.data",
        "suggested_learning_rate": "learning_rate",
        "RoundError": "loop",
        "train": "loop",
        "Dataset": "model",
        "Model": "model",
        "ClientUpdate": "private.clients",
        "local_steps": "private.clients",
        "Performance": "private.performance",
        "Mechanism": "private.samplers",
        "register_mechanism": "private.samplers",
        "RecordedRun": "reports.recorded",
        "load": "reports.recorded",
        "predictor": "reports.recorded",
        "read": "reports.recorded",
        "Report": "reports.report",
        "PrivateRun": "run",
        "FinishedError": "runs.run_directory",
        "ResumeError": "runs.run_directory",
        "batch_selection": "schedules.exported",
        "EntropyError": "schedules.draws",
        "Schedule": "schedules.schedule",
        "register_schedule": "schedules.schedule",
    },
)
