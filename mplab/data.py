"""The files that come with the package: the lessons and the digits."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: SHA-256 of data/digits.npy, which data/make_digits.py makes.
DIGITS_SHA256 = "c45cf27f9e6d1507aa17aa9949fab3d046c8ffa373a108f49991e27f232ad83b"


class Digits(NamedTuple):
    """Handwritten digits: each image is 8×8 pixels from 0 (white) to 16 (black)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def load_digits() -> Digits:
    """Load the 1797 handwritten digits, without network.

    Returns:
        `images` of shape (1797, 8, 8) and `labels` of shape (1797,), in the order of the source.

    Raises:
        ValueError: The file is missing or is not, byte for byte, the one this version came with.

    Source:
        UCI Machine Learning Repository, data set 80 (E. Alpaydin and C. Kaynak, 1998), its test
        set, as scikit-learn ships it; licence CC BY 4.0.

    Examples:
        >>> digits = load_digits()
        >>> digits.images.shape, digits.labels[:5]
        ((1797, 8, 8), array([0, 1, 2, 3, 4]))
    """
    path = course_folder("data") / "digits.npy"
    cure = "Restore the file, or install mplab again."
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"load_digits: {path} must be readable; got {error}. {cure}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != DIGITS_SHA256:
        raise ValueError(
            f"load_digits: {path} must have SHA-256 {DIGITS_SHA256}; got {found}. {cure}"
        )
    table = np.load(io.BytesIO(content), allow_pickle=False)
    return Digits(table[:, :64].reshape(-1, 8, 8), table[:, 64].astype(np.int64))


def course_folder(name: Literal["lessons", "data"]) -> Path:
    """Return the folder of the lessons or of the data that belong to this package.

    Raises:
        ValueError: `name` is neither "lessons" nor "data", or there is no such folder.

    Examples:
        >>> course_folder("data").joinpath("digits.npy").exists()
        True
    """
    if name not in ("lessons", "data"):
        raise ValueError(f"course_folder: name must be 'lessons' or 'data'; got {name!r}.")
    package = Path(__file__).resolve().parent
    # Installed, they lie inside the package; first, since any package may leave a folder "data"
    # beside ours. In a checkout they lie at the top.
    for folder in (package / "_course" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise ValueError(
        f"course_folder: {name} must lie in {package / '_course'} or {package.parent}; got neither."
        " Install mplab again."
    )
