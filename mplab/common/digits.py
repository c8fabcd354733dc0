"""The handwritten digits data set, with its checksum."""

import hashlib
import io
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mplab.common.files import course_folder

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
        OSError: The file is missing.
        ValueError: It differs from the file of this version.

    Source:
        UCI Machine Learning Repository, data set 80 (E. Alpaydin and C. Kaynak, 1998), its test
        set, as scikit-learn ships it; licence CC BY 4.0.

    Examples:
        >>> digits = load_digits()
        >>> digits.images.shape, digits.labels[:5]
        ((1797, 8, 8), array([0, 1, 2, 3, 4]))
    """
    path = course_folder("data") / "digits.npy"
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != DIGITS_SHA256:
        raise ValueError(
            f"load_digits: {path} must have SHA-256 {DIGITS_SHA256}; got {found}. "
            "Restore the file, or install mplab again."
        )
    table = np.load(io.BytesIO(content), allow_pickle=False)
    images = table[:, :64].reshape(-1, 8, 8)
    labels = table[:, 64].astype(np.int64)
    return Digits(images, labels)
