"""Local randomizers as public descriptions: what is known of a message that leaves the device.

A randomizer states facts: its privacy profile, whether it is one bit, how its noise adds up. Theorems ask for these
facts, never for a class, so a new randomizer is a new subclass of `Randomizer` and nothing else. The accountant reads
descriptions; `checkin_jax.training` draws from the mechanisms registered for them. Both see the same object, so the
report cannot disagree with the run.
"""

from checkin_jax.randomizers.concrete import HadamardResponse as HadamardResponse
from checkin_jax.randomizers.concrete import KaryResponse as KaryResponse
from checkin_jax.randomizers.concrete import L2Mechanism as L2Mechanism
from checkin_jax.randomizers.concrete import Laplace as Laplace
from checkin_jax.randomizers.concrete import Rappor as Rappor
from checkin_jax.randomizers.finite import FiniteMechanism as FiniteMechanism
from checkin_jax.randomizers.gaussian_noise import Gaussian as Gaussian
from checkin_jax.randomizers.named import ApproximateLDP as ApproximateLDP
from checkin_jax.randomizers.named import KnownProfile as KnownProfile
from checkin_jax.randomizers.named import OneBit as OneBit
from checkin_jax.randomizers.named import PureLDP as PureLDP
from checkin_jax.randomizers.named import pure_profile as pure_profile
from checkin_jax.randomizers.randomizer import BINARY as BINARY
from checkin_jax.randomizers.randomizer import MAX_EPSILON0 as MAX_EPSILON0
from checkin_jax.randomizers.randomizer import TERNARY as TERNARY
from checkin_jax.randomizers.randomizer import LabelLaws as LabelLaws
from checkin_jax.randomizers.randomizer import Randomizer as Randomizer
