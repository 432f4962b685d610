"""Functional kernels for the user's own jax.jit, jax.vmap and jax.grad; the modules serve the accountant, in NumPy.

The kernels take and give float64 arrays, and check nothing but that: they need JAX's float64 (`jax_enable_x64`).
"""

from checkin_jax import _startup

__getattr__, __dir__ = _startup.attach_stub(__name__, __file__)
