"""Labelled images as unsigned bytes: the embedded digits, and MNIST from TFDS or IDX files.

Clients hold the training part, which the protocol protects. The test part is public.
"""

from __future__ import annotations

import dataclasses
import gzip
import importlib
import logging
import math
import os
import zlib
from importlib import resources
from pathlib import Path

import numpy as np

from checkin_jax._suggest import how_to_install
from checkin_jax.training.model import Dataset

DIGITS_MAX = 16
MNIST_MAX = 255
_MNIST_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
_PREPARE = (
    f"{how_to_install('tfds')}, and pip install tensorflow-cpu; then "
    "tensorflow_datasets.builder('mnist', file_format='array_record').download_and_prepare()"
)
_AGAIN = "download it again"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledImages:
    """Square grey images with labels 0..9.

    Attributes:
      name: for reports.
      train_images, test_images: (records, side, side) uint8; shown to the network divided by `max_value`.
      train_labels, test_labels: (records,) uint8 in 0..9.
      max_value: the largest value a pixel can have.

    Raises:
      ValueError: shapes, types, counts or values do not fit together.
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    max_value: int

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            square = images.ndim == 3 and images.shape[1] == images.shape[2] and len(images) > 0
            for name, array, fits, expected, most in (
                (
                    "images",
                    images,
                    square,
                    "of shape (records, side, side), at least one record",
                    self.max_value,
                ),
                ("labels", labels, labels.shape == images.shape[:1], f"of {len(images)} labels", 9),
            ):
                if array.dtype != np.uint8 or not fits:
                    raise ValueError(
                        f"{self.name} {part} {name}: expected uint8 {expected}, got {array.dtype} {array.shape}"
                    )
                if array.max() > most:
                    raise ValueError(f"{self.name} {part} {name}: {array.max()} found, expected 0..{most}")
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise ValueError(f"{self.name}: training and test images differ in size")

    @property
    def image_side(self) -> int:
        """Pixels along one side."""
        return self.train_images.shape[1]

    @property
    def dataset(self) -> Dataset:
        """Clients' records (image, label), and the public test records."""
        return Dataset(
            records=(self.train_images, self.train_labels),
            test=(self.test_images, self.test_labels),
            name=self.name,
        )


def digits() -> LabelledImages:
    """The embedded digits: 1,437 training and 360 test images, 8x8, values 0..16 (see DIGITS_LICENSE.txt)."""
    file = resources.files("checkin_jax.training.examples") / "digits.npz"
    with file.open("rb") as stream, np.load(stream) as arrays:
        return LabelledImages(
            name="digits", max_value=DIGITS_MAX, **{name: arrays[name] for name in _MNIST_FILES}
        )


def mnist(data_dir: str | Path | None = None) -> LabelledImages:
    """Reads MNIST, or a data set in its format such as Fashion-MNIST: 28x28 images, values 0..255.

    The result's `dataset` is an argument of `train`: records (image, label) of uint8, and the test set as
    public records.

    Args:
      data_dir: a folder with the four IDX files under their original names, each plain or gzipped. None reads
        the copy of TensorFlow Datasets, which prepares it if possible.

    Raises:
      FileNotFoundError: the folder or one of its files is missing, or there is no TFDS copy.
      ValueError: a file is damaged, or its content does not match its name.
      OSError: a file cannot be read.
    """
    if data_dir is None:
        return _mnist_from_tfds()
    folder = Path(data_dir)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"data_dir={str(folder)!r}: no such folder; expected one with the four IDX files"
        )
    arrays = {key: _read_idx(folder, name) for key, name in _MNIST_FILES.items()}
    for key, array in arrays.items():
        side, expected = ((28, 28), "28x28 images") if key.endswith("_images") else ((), "a list of labels")
        if array.shape[1:] != side:
            raise ValueError(f"{folder / _MNIST_FILES[key]}: expected {expected}, got shape {array.shape}")
    return LabelledImages(name="mnist", max_value=MNIST_MAX, **arrays)


def _read_idx(folder: Path, name: str) -> np.ndarray:
    """Array of unsigned bytes from one IDX file of the folder, plain or gzipped.

    The file has the bytes 0, 0, 8, the number of axes, their lengths in 4 bytes each (the highest first), and the data.

    Raises:
      FileNotFoundError: there is no such file. ValueError: wrong first bytes, or more or fewer bytes than the header
        states.
    """
    file = next((each for each in (folder / name, folder / f"{name}.gz") if each.exists()), None)
    if file is None:
        raise FileNotFoundError(
            f"data_dir={str(folder)!r}: neither {name} nor {name}.gz is there; expected the four IDX files of MNIST"
        )
    content = file.read_bytes()
    if file.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{file}: damaged or truncated gzip file ({error}); {_AGAIN}") from error
    if content[:4] not in (b"\x00\x00\x08\x01", b"\x00\x00\x08\x03"):
        raise ValueError(
            f"{file}: not an IDX file of images or labels (it begins with {content[:4].hex()!r}); {_AGAIN}"
        )
    header = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4))
    if len(content) != header + math.prod(shape):
        raise ValueError(
            f"{file}: truncated or damaged IDX file, {len(content)} bytes where its header promises "
            f"{header + math.prod(shape)}; {_AGAIN}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _mnist_from_tfds() -> LabelledImages:
    arrays = {}
    absl_logger = logging.getLogger("absl")
    level = absl_logger.level
    try:
        tfds = importlib.import_module("tensorflow_datasets")
        absl_logger.setLevel(logging.ERROR)  # it logs a warning before it raises
        for part in ("train", "test"):
            # Without a named format TFDS may choose one that needs tensorflow.
            source = tfds.data_source(
                "mnist", split=part, builder_kwargs={"file_format": "array_record"}, download=False
            )
            examples = [source[i] for i in range(len(source))]
            arrays[f"{part}_images"] = np.stack([example["image"][..., 0] for example in examples])
            arrays[f"{part}_labels"] = np.array([example["label"] for example in examples], np.uint8)
    except (FileNotFoundError, ImportError, KeyError, ValueError, AssertionError) as error:
        raise FileNotFoundError(
            "MNIST not found: pass --data-dir with a folder holding its four IDX files, or prepare TensorFlow"
            f" Datasets' copy once ({_PREPARE}). TFDS said: {_first_line(error)}"
        ) from error
    except Exception as error:  # protobuf and Riegeli, used by TFDS, have their own errors
        base = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
        raise ValueError(
            f"{base}/mnist: TensorFlow Datasets' copy of MNIST is damaged or incomplete: remove that folder and prepare"
            f" it again ({_PREPARE}). TFDS said: {_first_line(error)}"
        ) from error
    finally:
        absl_logger.setLevel(level)
    return LabelledImages(name="mnist", max_value=MNIST_MAX, **arrays)


def _first_line(error: Exception) -> str:
    said = error.args[0] if isinstance(error, KeyError) and error.args else error
    return str(said).strip().partition("\n")[0]
