"""Names of the package, each imported on first use."""

from .client import ClientMod as ClientMod
from .local_dp_mod import LocalDpWorth as LocalDpWorth
from .local_dp_mod import local_dp_worth as local_dp_worth
from .strategy_accountant import Accountant as Accountant
