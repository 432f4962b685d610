"""Functional kernels, each imported on first use."""

from ..kernels.composition.pld import epsilon_from_log_moments as epsilon_from_log_moments
from ..kernels.composition.pld import rdp_of_pure_dp as rdp_of_pure_dp
from ..kernels.composition.series import theorem_1_rdp as theorem_1_rdp
