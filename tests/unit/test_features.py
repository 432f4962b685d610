"""Histograms of oriented gradients: against loops over pixels, and what they do not depend on."""

import math

import jax
import numpy as np
import pytest
from public_features import oriented_gradients, regression_problem

from checkin_jax.training.examples import data


def by_loops(image, max_value, cell, directions):
    """One image, a pixel at a time."""
    side = len(image) + 4
    x = np.zeros((side + 2, side + 2))
    x[3:-3, 3:-3] = image / max_value
    points = side // cell - 1
    found = np.zeros((points, points, directions))
    for i in range(side):
        for j in range(side):
            down, across = x[i + 2, j + 1] - x[i, j + 1], x[i + 1, j + 2] - x[i + 1, j]
            place = math.atan2(down, across) % (2 * math.pi) / (2 * math.pi) * directions
            first = math.floor(place)
            for k in range(points):
                for m in range(points):
                    # From 1 to `cell` and back, the largest weight next to the point.
                    near = [cell + 0.5 - abs(at - (c + 1) * cell + 0.5) for at, c in ((i, k), (j, m))]
                    if min(near) > 0:
                        vote = math.hypot(down, across) * near[0] * near[1] / (cell * (cell + 1)) ** 2
                        found[k, m, first % directions] += vote * (1 - place + first)
                        found[k, m, (first + 1) % directions] += vote * (place - first)
    found = np.sqrt(found).ravel()
    found -= found.mean()
    return found / max(np.linalg.norm(found), 1e-30)


@pytest.mark.parametrize(("cell", "directions"), [(2, 8), (4, 3)])
def test_histograms_equal_loops_over_pixels(cell, directions):
    images = data.digits().test_images[:3]
    found = oriented_gradients(images, max_value=16, cell=cell, directions=directions)
    points = 12 // cell - 1
    assert found.shape == (3, points * points * directions)
    assert found.dtype == np.float32
    expected = [by_loops(image, 16, cell, directions) for image in images]
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_an_image_speaks_for_itself_alone():
    images = data.digits().test_images[:5]
    together = oriented_gradients(images, max_value=16, cell=2)
    for image, features in zip(images, together):
        alone = oriented_gradients(image[None], max_value=16, cell=2)
        np.testing.assert_allclose(alone, features[None], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)
    assert not oriented_gradients(np.zeros((1, 8, 8), np.uint8), max_value=16, cell=2).any()


@pytest.mark.parametrize(
    ("shape", "settings", "message"),
    [
        ((2, 8, 9), {}, "expected .records, side, side."),
        ((2, 3, 3), {}, "side at least 4"),
        ((2, 8, 8), {"cell": 0}, "cell=0"),
        ((2, 8, 8), {"directions": 1}, "directions=1"),
    ],
)
def test_other_arguments_are_refused(shape, settings, message):
    with pytest.raises(ValueError, match=message):
        oriented_gradients(np.zeros(shape, np.uint8), max_value=16, **settings)


def test_the_problem_is_that_of_the_images_own_features():
    digits = data.digits()
    dataset, model = regression_problem(digits)
    assert dataset.test is not None
    for (held, labels), part in ((dataset.records, "train"), (dataset.test, "test")):
        expected = oriented_gradients(getattr(digits, f"{part}_images"), max_value=16, cell=2)
        np.testing.assert_array_equal(held, expected)
        np.testing.assert_array_equal(labels, getattr(digits, f"{part}_labels"))
    assert model.init(jax.random.key(0))["kernel"].shape == (200, 10)
    assert dataset.name == digits.name
