"""Who checks in when: schedules of every protocol, drawn from secret entropy."""

# Registered by being imported.
from checkin_jax.training.schedules import round_batches as round_batches
from checkin_jax.training.schedules import window_schedules as window_schedules
