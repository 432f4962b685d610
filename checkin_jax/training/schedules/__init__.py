"""Schedules of check-ins for every protocol, drawn from secret entropy."""

# The import registers the schedules.
from checkin_jax.training.schedules import protocol_schedules as protocol_schedules
