"""Sweeps as data sets of xarray."""

import numpy as np

import checkin_jax as cj

SHARED = {"what": "rdp", "protocol": cj.Shuffle}


def test_a_product_has_a_dimension_for_each_axis():
    found = cj.sweep(num_clients=[1000, 10_000], epsilon0=1.0, order=[2.0, 4.0, 0.5], **SHARED)
    made = found.to_xarray()
    assert dict(made.sizes) == {"num_clients": 2, "order": 3}
    assert float(made["epsilon0"]) == 1.0
    for i in range(len(found)):
        here = made.sel({name: found[name][i] for name in ("num_clients", "order")})
        np.testing.assert_array_equal(here["rdp"], found["rdp"][i])
        assert here["error"].item() == found["error"][i]


def test_other_tables_have_a_dimension_of_settings():
    found = cj.sweep(
        rows="zip", num_clients=[1000, 3000, 1000], epsilon0=[1.0, 1.0, 2.0], order=2.0, **SHARED
    )
    made = found.to_xarray()
    assert dict(made.sizes) == {"setting": 3}
    np.testing.assert_array_equal(made["num_clients"], found["num_clients"])
    np.testing.assert_array_equal(made["rdp"].where(made["epsilon0"] == 1.0, drop=True), found["rdp"][:2])
