"""Schedules of check-ins for every protocol, drawn from secret entropy."""

# The import registers the schedules.
from checkin_jax.training.schedules import round_batches as round_batches
from checkin_jax.training.schedules import window_schedules as window_schedules
