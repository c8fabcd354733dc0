"""Make digits.npy from scikit-learn's copy of the digits: `python data/make_digits.py`.

Needs scikit-learn (`pip install scikit-learn`), which mplab itself does not. The file is a plain
.npy of uint8 without compression, so the same images always give the same bytes;
mplab.common.digits refuses any other bytes. Source and licence are in README.md beside this file.
"""

import hashlib
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TARGET = Path(__file__).with_name("digits.npy")


def main() -> None:
    digits = load_digits()
    pixels = digits.images.reshape(len(digits.images), 64)
    table = np.column_stack([pixels, digits.target])
    rows = table.astype(np.uint8)
    if not np.array_equal(rows, table):
        raise ValueError(
            "make_digits: pixels and labels must be integers from 0 to 255."
        )
    np.save(TARGET, rows, allow_pickle=False)
    print(
        hashlib.sha256(TARGET.read_bytes()).hexdigest(),
        TARGET.name,
        rows.shape,
        rows.dtype,
    )


if __name__ == "__main__":
    main()
