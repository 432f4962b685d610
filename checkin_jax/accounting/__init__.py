"""Host-side accounting: validation, choice of bound, brackets, events and calibration."""

from checkin_jax.accounting.account import account as account
from checkin_jax.accounting.accountant import CheckInAccountant as CheckInAccountant
from checkin_jax.accounting.guarantee import Guarantee as Guarantee
from checkin_jax.accounting.renyi import rdp as rdp
