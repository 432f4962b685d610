"""The recipe for equinox: a module of its own is trained, read back and used."""

import equinox as eqx  # pyright: ignore[reportMissingImports]
import jax
import numpy as np

from .recipes import names_of


def test_the_recipe_trains_a_module_and_gives_it_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = names_of("equinox")
    trained, table = names["trained"], names["table"]
    assert isinstance(trained, eqx.nn.MLP)
    with np.load("runs/equinox/parameters.npz") as stored:
        sizes = sorted(array.size for array in stored.values())
    assert sizes == sorted(array.size for array in jax.tree.leaves(eqx.filter(trained, eqx.is_array)))
    guessed = np.array([int(trained(x).argmax()) for x in table["x"][:100]])
    assert (guessed == table["y"][:100]).mean() > 0.8
