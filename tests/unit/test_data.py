"""Data: the embedded digits, IDX files good and bad, and what is said when there is no MNIST."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import re
import sys
import types

import numpy as np
import pytest

from checkin_jax import cli
from checkin_jax.training.examples import data

FILES = {
    "train-images-idx3-ubyte": (20, 28, 28),
    "train-labels-idx1-ubyte": (20,),
    "t10k-images-idx3-ubyte": (5, 28, 28),
    "t10k-labels-idx1-ubyte": (5,),
}


def _idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path):
    """A small MNIST: two files plain, two gzipped."""
    rng = np.random.default_rng(0)
    for i, (name, shape) in enumerate(FILES.items()):
        content = _idx(rng.integers(10 if len(shape) == 1 else 256, size=shape))
        if i % 2:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (tmp_path / name).write_bytes(content)
    return tmp_path


def test_the_digits_are_the_whole_uci_test_set():
    digits = data.digits()
    assert digits.train_images.shape == (1437, 8, 8)
    assert digits.test_images.shape == (360, 8, 8)
    assert digits.image_side == 8
    labels = np.concatenate([digits.train_labels, digits.test_labels])
    # Class counts as published with the data set.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert digits.train_images.max() == digits.max_value == 16
    assert np.bincount(digits.test_labels, minlength=10).min() >= 25


def test_digits_equal_scikit_learns():
    datasets = pytest.importorskip("sklearn.datasets")
    theirs = datasets.load_digits()
    order = np.random.default_rng(0).permutation(1797)
    digits = data.digits()
    np.testing.assert_array_equal(
        np.concatenate([digits.train_images, digits.test_images]), theirs.images[order].astype(np.uint8)
    )
    np.testing.assert_array_equal(
        np.concatenate([digits.train_labels, digits.test_labels]), theirs.target[order].astype(np.uint8)
    )


def test_idx_files_are_read_plain_or_gzipped(folder):
    mnist = data.mnist(folder)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(mnist.train_images, rng.integers(256, size=(20, 28, 28)))
    np.testing.assert_array_equal(mnist.train_labels, rng.integers(10, size=20))
    assert mnist.test_images.shape == (5, 28, 28)
    assert mnist.test_labels.dtype == np.uint8


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"


def _in_place_of(array: np.ndarray):
    return lambda content: _idx(array)


# A file, its content from what it was, and what is said of it.
DAMAGES = [
    (IMAGES, lambda content: content[:-1], "truncated or damaged .* 15695 bytes .* promises 15696"),
    (IMAGES, lambda content: content + b"\0", "15697 bytes where its header promises 15696"),
    (IMAGES, lambda content: b"\0\0\x08\x03\0\0", "6 bytes where its header promises 16"),
    (IMAGES, lambda content: b"", f"{IMAGES}: not an IDX file .*it begins with ''.; download it again"),
    (LABELS, lambda content: content[:-9], f"{LABELS}: damaged or truncated gzip"),
    (
        LABELS,
        lambda content: content[:14] + b"\xff" * 6 + content[20:],
        f"{LABELS}: damaged or truncated gzip",
    ),
    (LABELS, lambda content: b"hello, this is text", f"{LABELS}: damaged or truncated gzip"),
    (IMAGES, lambda content: b"\0\0\x0d\x03" + content[4:], "not an IDX file of images or labels"),
    (IMAGES, _in_place_of(np.zeros(20)), "expected 28x28 images"),
    ("train-labels-idx1-ubyte", _in_place_of(np.zeros((20, 28, 28))), "expected a list of labels"),
    (IMAGES, _in_place_of(np.zeros((20, 27, 28))), "expected 28x28 images"),
    ("train-labels-idx1-ubyte", _in_place_of(np.zeros(19)), "expected uint8 of 20 labels"),
    ("train-labels-idx1-ubyte", _in_place_of(np.full(20, 10)), "10 found, expected 0..9"),
    (LABELS, lambda content: b"", f"{LABELS}: not an IDX file .*; download it again"),
]


@pytest.mark.parametrize(("name", "change", "match"), DAMAGES)
def test_damaged_files_are_refused_in_one_line_before_anything_is_written(
    folder, capsys, name, change, match
):
    file = folder / name
    file.write_bytes(change(file.read_bytes() if file.exists() else b""))
    _refused(capsys, match, "--data-dir", str(folder), "--run-dir", str(folder / "run"))
    assert not (folder / "run").exists()


def test_a_folder_no_records_and_half_a_download_are_refused_too(folder, capsys):
    options = ["--data-dir", str(folder), "--run-dir", str(folder / "run")]
    (folder / IMAGES).rename(folder / "other")
    (folder / IMAGES).mkdir()
    _refused(capsys, f"{IMAGES}: Is a directory", *options)
    (folder / IMAGES).rmdir()
    (folder / "other").rename(folder / IMAGES)
    for name, shape in (("t10k-images-idx3-ubyte", (0, 28, 28)), ("t10k-labels-idx1-ubyte", (0,))):
        (folder / name).write_bytes(_idx(np.zeros(shape)))
    _refused(capsys, r"at least one record, got uint8 \(0, 28, 28\)", *options)
    for file in folder.glob("t10k-*"):
        file.unlink()
    _refused(
        capsys,
        r"neither t10k-images-idx3-ubyte nor t10k-images-idx3-ubyte\.gz.*; expected the four IDX files",
        *options,
    )
    assert not (folder / "run").exists()


def _refused(capsys, match, *args):
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "mnist", *args])
    assert stop.value.code == 2
    assert re.fullmatch(rf"checkin: .*{match}.*\n", capsys.readouterr().err)


def test_a_file_that_may_not_be_read_is_named(folder, capsys, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    _refused(
        capsys,
        "train-images.*: Permission denied",
        "--data-dir",
        str(folder),
        "--run-dir",
        str(folder / "run"),
    )


@pytest.fixture
def prepared(monkeypatch):
    """Puts a function in place of `tensorflow_datasets.data_source`."""
    return lambda data_source: monkeypatch.setitem(
        sys.modules, "tensorflow_datasets", types.SimpleNamespace(data_source=data_source)
    )


class ParseError(Exception):
    """Stands in for protobuf's."""


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Corrupted Riegeli/records file: chunk header hash mismatch\nMore."),
        RuntimeError(
            "open() failed: No such file or directory; opening mnist-train.array_record-00000-of-00001"
        ),
        ParseError("Failed to load JSON: Unterminated string starting at: line 14 column 7 (char 547)."),
    ],
)
def test_a_damaged_tfds_copy_is_to_be_prepared_again(tmp_path, capsys, monkeypatch, prepared, error):
    """What TFDS says of a preparation that was cut short after its folder had its name."""

    def data_source(name, **kwargs):
        raise error

    prepared(data_source)
    monkeypatch.setenv("TFDS_DATA_DIR", "/somewhere")
    said = re.escape(str(error).partition("\n")[0])
    _refused(
        capsys,
        rf"/somewhere/mnist: .* prepare it again .* TFDS said: {said}",
        "--run-dir",
        str(tmp_path / "run"),
    )


def test_a_missing_folder_is_named(folder):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        data.mnist(folder / "nowhere")


def test_without_tfds_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(
        FileNotFoundError, match=r"pass --data-dir .* or prepare TensorFlow Datasets"
    ) as caught:
        data.mnist()
    assert "\n" not in str(caught.value)


def test_an_unprepared_tfds_copy_gives_the_same_message(prepared):
    def data_source(name, **kwargs):
        raise KeyError("Trying to access `splits['train']` but `splits` is empty.\nMore.")

    prepared(data_source)
    with pytest.raises(FileNotFoundError, match=r"pass --data-dir .* is empty\.") as caught:
        data.mnist()
    assert "\n" not in str(caught.value)


def test_tfds_is_read_as_array_record_without_downloading(prepared):
    calls = []

    def data_source(name, **kwargs):
        calls.append((name, kwargs))
        return [{"image": np.full((28, 28, 1), i, np.uint8), "label": np.int64(i)} for i in range(4)]

    prepared(data_source)
    mnist = data.mnist()
    assert [kwargs["split"] for _, kwargs in calls] == ["train", "test"]
    assert all(kwargs["builder_kwargs"] == {"file_format": "array_record"} for _, kwargs in calls)
    assert not any(kwargs["download"] for _, kwargs in calls)
    assert mnist.train_labels.tolist() == [0, 1, 2, 3]
    assert mnist.test_images[2].max() == 2


def test_a_dataset_is_checked_as_a_whole():
    digits = data.digits()
    with pytest.raises(ValueError, match="differ in size"):
        dataclasses.replace(digits, test_images=np.zeros((360, 9, 9), np.uint8))
    with pytest.raises(ValueError, match=r"16 found, expected 0\.\.15"):
        dataclasses.replace(digits, max_value=15)
    with pytest.raises(ValueError, match="expected uint8"):
        dataclasses.replace(digits, train_images=digits.train_images.astype(np.float32))
