"""Pure jitted float64 functions: arrays in, arrays out, no validation, no state.

Call them inside `jax.enable_x64(True)`; every public function of `checkin_jax.accounting` does.
"""
