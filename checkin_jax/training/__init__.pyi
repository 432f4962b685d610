"""Names of the package, each imported on first use."""

from .draws import EntropyError as EntropyError
from .examples.data import mnist as mnist
from .loop import RoundError as RoundError
from .loop import train as train
from .model import Dataset as Dataset
from .model import Model as Model
from .private.clients import ClientUpdate as ClientUpdate
from .private.clients import local_steps as local_steps
from .private.mechanism import Mechanism as Mechanism
from .private.mechanism import register_mechanism as register_mechanism
from .private.step import Performance as Performance
from .reports.recorded import RecordedRun as RecordedRun
from .reports.recorded import load as load
from .reports.recorded import predictor as predictor
from .reports.recorded import read as read
from .reports.report import Report as Report
from .run import PrivateRun as PrivateRun
from .runs.run_directory import FinishedError as FinishedError
from .runs.run_directory import ResumeError as ResumeError
from .schedules import Schedule as Schedule
from .schedules import batch_selection as batch_selection
from .schedules import register_schedule as register_schedule
from .server import suggested_learning_rate as suggested_learning_rate
