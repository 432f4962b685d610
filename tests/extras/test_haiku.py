"""The recipe for haiku: a transformed function is trained, read back and used."""

import numpy as np

from .recipes import names_of


def test_the_recipe_trains_a_transformed_function(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = names_of("haiku")
    predict, table = names["predict"], names["table"]
    parameters = names["cj"].training.load("runs/haiku", names["model"])
    assert {*parameters} == {"mlp/~/linear_0", "mlp/~/linear_1"}
    x = table["x"][0]
    np.testing.assert_allclose(predict(x), names["network"].apply(parameters, x), rtol=1e-5)
    guessed = np.array([int(predict(x).argmax()) for x in table["x"][:100]])
    assert (guessed == table["y"][:100]).mean() > 0.8
