"""Check-in privacy on JAX: a certified accountant and a fast trainer for random and shuffled check-ins.

>>> import checkin_jax as cj
>>> run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.1, num_rounds=6_800)
>>> g = cj.account(run, cj.PureLDP(epsilon0=2.0), delta=1e-6)
>>> print(f"{g.lower:.2f} <= epsilon <= {g.epsilon:.2f}, {g.validity}")
1.36 <= epsilon <= 1.36, certified
"""

from checkin_jax import _startup as _startup  # isort: skip

from checkin_jax._version import __version__ as __version__

# Lazy imports: accounting does not load the trainer, and completion does not load JAX.
__getattr__, __dir__ = _startup.attach_stub(__name__, __file__)
