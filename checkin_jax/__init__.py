"""Check-in privacy on JAX: a certified accountant and a fast trainer for random and shuffled check-ins.

>>> import checkin_jax as cj
>>> run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800)
>>> g = cj.account(run, cj.PureLDP(epsilon0=2.0), delta=1e-6)
>>> print(f"{g.lower:.2f} <= epsilon <= {g.epsilon:.2f}, {g.validity}")
1.36 <= epsilon <= 1.44, certified
"""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from checkin_jax import _command as _command  # isort: skip
from checkin_jax._version import __version__ as __version__
from checkin_jax.accounting.account import account as account
from checkin_jax.accounting.calibration import Calibration as Calibration
from checkin_jax.accounting.calibration import calibrate as calibrate
from checkin_jax.accounting.composition.renyi import rdp as rdp
from checkin_jax.accounting.guarantee import Guarantee as Guarantee
from checkin_jax.accounting.interop.accountant import CheckInAccountant as CheckInAccountant
from checkin_jax.accounting.interop.events import AveragedUpdatesDpEvent as AveragedUpdatesDpEvent
from checkin_jax.accounting.interop.events import FixedWindowDpEvent as FixedWindowDpEvent
from checkin_jax.accounting.interop.events import GaussianMessageDpEvent as GaussianMessageDpEvent
from checkin_jax.accounting.interop.events import PureLdpDpEvent as PureLdpDpEvent
from checkin_jax.accounting.interop.events import ShuffledCheckInDpEvent as ShuffledCheckInDpEvent
from checkin_jax.accounting.interop.events import SlidingWindowDpEvent as SlidingWindowDpEvent
from checkin_jax.accounting.interop.events import to_event as to_event
from checkin_jax.accounting.interop.pld import to_pld as to_pld
from checkin_jax.protocols import AveragedUpdates as AveragedUpdates
from checkin_jax.protocols import FixedWindow as FixedWindow
from checkin_jax.protocols import Shuffle as Shuffle
from checkin_jax.protocols import ShuffledCheckIn as ShuffledCheckIn
from checkin_jax.protocols import SlidingWindow as SlidingWindow
from checkin_jax.randomizers import Gaussian as Gaussian
from checkin_jax.randomizers import PureLDP as PureLDP
from checkin_jax.sweeps.sweep import sweep as sweep
from checkin_jax.sweeps.sweep import sweep_to_file as sweep_to_file
from checkin_jax.sweeps.table import Sweep as Sweep

if _TYPE_CHECKING:
    from checkin_jax import auditing as auditing
    from checkin_jax import training as training

# Imported when they are used.
_LATER = ("auditing", "training")


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
