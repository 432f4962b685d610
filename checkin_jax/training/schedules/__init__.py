"""Who checks in when: schedules of every protocol, drawn from secret entropy."""

# Registered by being imported.
from checkin_jax.training.schedules import rounds as rounds
from checkin_jax.training.schedules import windows as windows
