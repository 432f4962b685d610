"""Private training under check-in protocols: any model, any records, any optax optimizer. See `train`.

>>> import checkin_jax as cj
>>> run = cj.training.PrivateRun(
...     protocol=cj.FixedWindow(num_clients=2_000, num_slots=200, num_epochs=2, minibatch=100),
...     randomizer=cj.Gaussian(noise_multiplier=2.0),
... )
>>> run.schedule.num_rounds
4
"""

from checkin_jax import _startup

# Lazy imports: optax and the private step are slower to import than everything else.
__getattr__, __dir__ = _startup.attach_stub(__name__, __file__)
