"""Functional kernels, each imported on first use."""

from ..kernels.composition.series import theorem_1_rdp as theorem_1_rdp
from ..kernels.conversions import epsilon_from_log_moments as epsilon_from_log_moments
from ..kernels.conversions import rdp_of_pure_dp as rdp_of_pure_dp
