"""Local randomizers as public descriptions of the messages that leave a device.

A randomizer declares facts, such as its privacy profile or the addition of its noise in sums. Theorems need facts, not
classes, so a new randomizer is one new subclass of `Randomizer`. The accountant reads descriptions, and
`checkin_jax.training` draws from the mechanisms registered for them. Both use the same object, so the report cannot
disagree with the run.
"""

from checkin_jax.randomizers.concrete import Gaussian as Gaussian
from checkin_jax.randomizers.concrete import HadamardResponse as HadamardResponse
from checkin_jax.randomizers.concrete import KaryResponse as KaryResponse
from checkin_jax.randomizers.concrete import L2Mechanism as L2Mechanism
from checkin_jax.randomizers.concrete import Laplace as Laplace
from checkin_jax.randomizers.concrete import Rappor as Rappor
from checkin_jax.randomizers.finite import FiniteMechanism as FiniteMechanism
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
