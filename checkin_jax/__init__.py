"""Check-in privacy on JAX: a certified accountant and a fast trainer for random and shuffled check-ins.

>>> import checkin_jax as cj
>>> run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800)
>>> g = cj.account(run, cj.PureLDP(epsilon0=2.0), delta=1e-6)
>>> print(f"{g.lower:.2f} <= epsilon <= {g.epsilon:.2f}, {g.validity}")
1.36 <= epsilon <= 1.36, certified
"""

from checkin_jax import _startup as _startup  # isort: skip

from typing import TYPE_CHECKING as _TYPE_CHECKING

from checkin_jax import _lazy
from checkin_jax._version import __version__ as __version__

if _TYPE_CHECKING:
    from checkin_jax import auditing as auditing
    from checkin_jax import training as training
    from checkin_jax._variables import FreeVariable as FreeVariable
    from checkin_jax.accounting import published as published
    from checkin_jax.accounting.account import account as account
    from checkin_jax.accounting.account import account_groups as account_groups
    from checkin_jax.accounting.calibration import Calibration as Calibration
    from checkin_jax.accounting.calibration import calibrate as calibrate
    from checkin_jax.accounting.certificate import certificate as certificate
    from checkin_jax.accounting.compare import ComparedBound as ComparedBound
    from checkin_jax.accounting.compare import compare as compare
    from checkin_jax.accounting.composition.renyi import epsilon_by_rdp as epsilon_by_rdp
    from checkin_jax.accounting.composition.renyi import rdp as rdp
    from checkin_jax.accounting.composition.renyi_lower import rdp_lower as rdp_lower
    from checkin_jax.accounting.guarantee import Guarantee as Guarantee
    from checkin_jax.accounting.interop.accountant import CheckInAccountant as CheckInAccountant
    from checkin_jax.accounting.interop.allocation import AllocationGuarantee as AllocationGuarantee
    from checkin_jax.accounting.interop.allocation import RandomAllocationDpEvent as RandomAllocationDpEvent
    from checkin_jax.accounting.interop.allocation import random_allocation as random_allocation
    from checkin_jax.accounting.interop.device_budget import DeviceBudget as DeviceBudget
    from checkin_jax.accounting.interop.dp_accounting_pld import to_pld as to_pld
    from checkin_jax.accounting.interop.events import CheckInDpEvent as CheckInDpEvent
    from checkin_jax.accounting.interop.events import to_event as to_event
    from checkin_jax.accounting.published_values import PublishedValue as PublishedValue
    from checkin_jax.accounting.published_values import literature as literature
    from checkin_jax.protocols import AvailableCheckIn as AvailableCheckIn
    from checkin_jax.protocols import AveragedUpdates as AveragedUpdates
    from checkin_jax.protocols import CheckInProtocol as CheckInProtocol
    from checkin_jax.protocols import FixedWindow as FixedWindow
    from checkin_jax.protocols import Shuffle as Shuffle
    from checkin_jax.protocols import ShuffledCheckIn as ShuffledCheckIn
    from checkin_jax.protocols import SlidingWindow as SlidingWindow
    from checkin_jax.protocols import from_availability as from_availability
    from checkin_jax.randomizers import ApproximateLDP as ApproximateLDP
    from checkin_jax.randomizers import FiniteMechanism as FiniteMechanism
    from checkin_jax.randomizers import Gaussian as Gaussian
    from checkin_jax.randomizers import HadamardResponse as HadamardResponse
    from checkin_jax.randomizers import KaryResponse as KaryResponse
    from checkin_jax.randomizers import KnownProfile as KnownProfile
    from checkin_jax.randomizers import L2Mechanism as L2Mechanism
    from checkin_jax.randomizers import LabelLaws as LabelLaws
    from checkin_jax.randomizers import Laplace as Laplace
    from checkin_jax.randomizers import OneBit as OneBit
    from checkin_jax.randomizers import PureLDP as PureLDP
    from checkin_jax.randomizers import Randomizer as Randomizer
    from checkin_jax.randomizers import Rappor as Rappor
    from checkin_jax.rates import CheckInRates as CheckInRates
    from checkin_jax.rates import RateLimits as RateLimits
    from checkin_jax.rates import Rates as Rates
    from checkin_jax.sweeps.store import finished_rows as finished_rows
    from checkin_jax.sweeps.sweep import sweep as sweep
    from checkin_jax.sweeps.sweep import sweep_to_file as sweep_to_file
    from checkin_jax.sweeps.tables import Sweep as Sweep

# Lazy imports: accounting does not load the trainer, and completion does not load JAX.
__getattr__, __dir__ = _lazy.attach(
    __name__,
    {
        "FreeVariable": "_variables",
        "account": "accounting.account",
        "Calibration": "accounting.calibration",
        "calibrate": "accounting.calibration",
        "certificate": "accounting.certificate",
        "ComparedBound": "accounting.compare",
        "compare": "accounting.compare",
        "PublishedValue": "accounting.published_values",
        "literature": "accounting.published_values",
        "epsilon_by_rdp": "accounting.composition.renyi",
        "rdp": "accounting.composition.renyi",
        "rdp_lower": "accounting.composition.renyi_lower",
        "account_groups": "accounting.account",
        "Guarantee": "accounting.guarantee",
        "AvailableCheckIn": "protocols",
        "AveragedUpdates": "protocols",
        "CheckInProtocol": "protocols",
        "FixedWindow": "protocols",
        "Shuffle": "protocols",
        "ShuffledCheckIn": "protocols",
        "SlidingWindow": "protocols",
        "from_availability": "protocols",
        "ApproximateLDP": "randomizers",
        "FiniteMechanism": "randomizers",
        "Gaussian": "randomizers",
        "HadamardResponse": "randomizers",
        "KaryResponse": "randomizers",
        "KnownProfile": "randomizers",
        "L2Mechanism": "randomizers",
        "LabelLaws": "randomizers",
        "Laplace": "randomizers",
        "OneBit": "randomizers",
        "PureLDP": "randomizers",
        "Randomizer": "randomizers",
        "Rappor": "randomizers",
        "CheckInRates": "rates",
        "RateLimits": "rates",
        "Rates": "rates",
        "finished_rows": "sweeps.store",
        "sweep": "sweeps.sweep",
        "sweep_to_file": "sweeps.sweep",
        "Sweep": "sweeps.tables",
        "auditing": "auditing",
        "training": "training",
        "published": "accounting.published",
        "CheckInAccountant": "accounting.interop.accountant",
        "DeviceBudget": "accounting.interop.device_budget",
        "AllocationGuarantee": "accounting.interop.allocation",
        "RandomAllocationDpEvent": "accounting.interop.allocation",
        "random_allocation": "accounting.interop.allocation",
        "CheckInDpEvent": "accounting.interop.events",
        "to_event": "accounting.interop.events",
        "to_pld": "accounting.interop.dp_accounting_pld",
    },
)
