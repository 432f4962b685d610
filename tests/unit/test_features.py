"""Histograms of oriented gradients: against loops over pixels, and what they do not depend on."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from public_features import crops, oriented_gradients, regression_problem, softmax_regression

from checkin_jax.training.examples import data
from checkin_jax.training.private import clients, noise


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


def test_crops_are_the_image_and_the_image_moved():
    images = data.digits().test_images[:20]
    found = crops(images, 6, reach=2, seed=1)
    assert found.shape == (20, 6, 8, 8)
    assert found.dtype == images.dtype
    np.testing.assert_array_equal(found[:, 0], images)
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    moved = [padded[:, i : i + 8, j : j + 8] for i in range(5) for j in range(5)]
    for record in range(20):
        for crop in found[record]:
            assert any(np.array_equal(crop, other[record]) for other in moved)
    assert len(np.unique(found.reshape(120, -1), axis=0)) > 60
    # Draws are public: the same for whoever knows the seed, and none of the image's own.
    np.testing.assert_array_equal(crops(images[::-1], 6, seed=1)[::-1][:, 0], images)
    np.testing.assert_array_equal(found, crops(images, 6, seed=1))
    assert not np.array_equal(found, crops(images, 6, seed=2))
    np.testing.assert_array_equal(crops(images, 3, reach=0)[:, 2], images)
    with pytest.raises(ValueError, match="num_crops=0"):
        crops(images, 0)
    with pytest.raises(ValueError, match="reach=9"):
        crops(images, 2, reach=9)


@pytest.mark.parametrize("gradients", ["layers", "general"])
def test_a_client_of_several_crops_sends_the_clipped_mean_of_their_gradients(gradients):
    model, rng = softmax_regression(12), np.random.default_rng(0)
    parameters = {"kernel": jnp.asarray(rng.normal(size=(12, 10)), jnp.float32)}
    x = jnp.asarray(rng.normal(size=(5, 1, 4, 12)), jnp.float32)
    labels = jnp.arange(5)
    rows = clients.update_rows(model.loss, parameters, (x, labels[:, None]), jnp.ones((5, 1)), gradients)
    one = [
        [jax.grad(model.loss)(parameters, (x[i, 0, j], labels[i]))["kernel"] for j in range(4)]
        for i in range(5)
    ]
    mean = np.mean(one, axis=1).reshape(5, -1)
    np.testing.assert_allclose(rows.matrix(), mean, atol=1e-6)
    clipped = np.asarray(noise.clip(rows, 0.1).matrix(), np.float64)
    assert np.all(np.linalg.norm(clipped, axis=1) <= 0.1)
    np.testing.assert_allclose(clipped, 0.1 * mean / np.linalg.norm(mean, axis=1, keepdims=True), atol=1e-6)


def test_the_problem_is_that_of_the_images_own_features():
    digits = data.digits()
    dataset, model = regression_problem(digits, directions=3, num_crops=2)
    assert dataset.test is not None
    (held, labels), (tested, test_labels) = dataset.records, dataset.test
    assert held.shape == (len(digits.train_images), 2, 75)
    for crop, images in ((0, digits.train_images), (1, crops(digits.train_images, 2)[:, 1])):
        expected = oriented_gradients(images, max_value=16, cell=2, directions=3)
        np.testing.assert_array_equal(held[:, crop], expected)
    np.testing.assert_array_equal(
        tested, oriented_gradients(digits.test_images, max_value=16, cell=2, directions=3)
    )
    np.testing.assert_array_equal(labels, digits.train_labels)
    np.testing.assert_array_equal(test_labels, digits.test_labels)
    assert model.init(jax.random.key(0))["kernel"].shape == (75, 10)
    assert dataset.name == digits.name
    with pytest.raises(ValueError, match="num_crops=0"):
        regression_problem(digits, num_crops=0)
