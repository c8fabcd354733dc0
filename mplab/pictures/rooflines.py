"""The figures of matrix products: their speed under two limits, and their errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mplab.pictures.arithmetic import log_axes
from mplab.pictures.canvas import (
    REFERENCE,
    STYLES,
    End,
    Picture,
    in_house_style,
    label_ends,
    require_some,
    titled,
)
from mplab.rooflines import ProductError, Roofline


def _ratio(x: float) -> str:
    return f"{x:.2g}×"


@in_house_style
def roofline(roof: Roofline) -> Picture:
    """The speed of products against their operations per byte, under the limit of memory.

    Args:
        roof: measured or recorded.

    Returns:
        A figure whose title compares each format with FP32 at the largest common size.
    """
    require_some("roofline", "roof.products", roof.products)
    picture = Picture(height=4.2, width=8.2)
    axes = picture.subplots()
    log_axes(axes, "operations per byte", "operations per second")
    ends, names = [], list(dict.fromkeys(p.fmt for p in roof.products))
    for name in names:
        here = [p for p in roof.products if p.fmt == name]
        look = STYLES.get(name, REFERENCE)
        x, y = [p.per_byte for p in here], [p.per_second for p in here]
        axes.plot(x, y, color=look.colour, marker=look.marker or None, linestyle=look.dash)
        ends.append(End(axes, x[-1], y[-1], name, look.colour))
    rates = [p.per_second for p in roof.products]
    low, high = min(p.per_byte for p in roof.products), max(rates) / roof.bytes_per_second
    high = min(max(high, 2 * low), max(p.per_byte for p in roof.products))
    ends_of_limit = np.array([low, high])
    axes.plot(
        ends_of_limit, ends_of_limit * roof.bytes_per_second, color=REFERENCE.colour, linewidth=1
    )
    ends.append(End(axes, high, high * roof.bytes_per_second, "limit of memory", REFERENCE.colour))
    axes.set_ylim(min(*rates, low * roof.bytes_per_second) / 2, max(rates) * 3)
    label_ends(picture, ends)
    details = "; ".join(f"{p.fmt} {p.size}: {p.per_second:.3g}/s" for p in roof.products)
    return titled(picture, _claim(roof, names), f"Line chart, {roof.where}. {details}.")


def _claim(roof: Roofline, names: Sequence[str]) -> str:
    if "FP32" not in names or len(names) == 1:
        return f"Speed of products, {roof.where}"
    parts = []
    for name in names:
        if name == "FP32":
            continue
        own = {p.size: p.per_second for p in roof.products if p.fmt == name}
        wide = {p.size: p.per_second for p in roof.products if p.fmt == "FP32"}
        size = max(own.keys() & wide.keys())
        parts.append(f"{name} {_ratio(own[size] / wide[size])} at size {size}")
    return f"Speed of FP32 products is multiplied: {', '.join(parts)} ({roof.where})"


@in_house_style
def matmul_errors(rows: Sequence[ProductError]) -> Picture:
    """The error of products by size and format.

    Args:
        rows: what `mplab.rooflines.matmul_errors` measured.

    Returns:
        A figure whose title gives the error at the largest size.
    """
    require_some("matmul_errors", "rows", rows)
    picture = Picture(height=3.6)
    axes = picture.subplots()
    log_axes(axes, "size of the matrices", "relative error of the product")
    ends = []
    for name in dict.fromkeys(row.fmt for row in rows):
        here = [row for row in rows if row.fmt == name]
        look = STYLES.get(name, REFERENCE)
        x, y = [row.size for row in here], [row.error for row in here]
        axes.plot(x, y, color=look.colour, marker=look.marker or None, linestyle=look.dash)
        ends.append(End(axes, x[-1], y[-1], name, look.colour))
    label_ends(picture, ends)
    largest = max(row.size for row in rows)
    last = ", ".join(f"{row.fmt} {row.error:.1g}" for row in rows if row.size == largest)
    details = "; ".join(f"{row.fmt} {row.size}: {row.error:.2g}" for row in rows)
    claim = f"Relative errors of products of size {largest}: {last}"
    return titled(picture, claim, f"Line chart. {details}.")
