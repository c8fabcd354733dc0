"""The figure of the memory that a training step takes."""

from collections.abc import Sequence

import numpy as np

from mplab.course.pictures import canvas as c
from mplab.training.stages import Memory

# The memory of a step --------------------------------------------------------------------
_COMPONENTS = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "low copies of weights",
)


@c.in_house_style
def memory(rows: Sequence[Memory]) -> c.Picture:
    """Draw the memory of a training step by component, one bar for each recipe.

    Args:
        rows: what `mplab.training.memory` measured, FP32 first. For a simulated recipe the
            bar shows what its format takes in hardware; the simulator itself keeps FP32.

    Returns:
        A figure whose title says what mixed precision saves, and what it does not.
    """
    unit, size = _unit(max(sum(_parts(row)) for row in rows))
    picture = c.Picture(height=1.5 + 0.5 * len(rows), width=8.6)
    table = np.array([_parts(row) for row in rows]) / size
    axes = picture.subplots()
    c.bars(axes, [_recipe_words(row) for row in rows], table, _COMPONENTS)
    picture.legend(loc="outside lower center", ncols=3, frameon=False)
    axes.set_xlabel(f"memory ({unit})")
    details = "; ".join(
        f"{_recipe_words(row)}: "
        + ", ".join(
            f"{part} {count}"
            for part, count in zip(_COMPONENTS, _parts(row), strict=True)
        )
        for row in rows
    )
    return c.titled(picture, _memory_claim(rows), f"Stacked bars, bytes. {details}.")


def _memory_claim(rows: Sequence[Memory]) -> str:
    first = rows[0]
    others = [row for row in rows[1:] if not row.checkpointed]
    if not others:
        return f"{first.recipe} takes {sum(_parts(first)):,} bytes"
    same = all(row.parameters == first.parameters for row in others)
    saved = min(others, key=lambda row: sum(_parts(row)[3:]))
    ratio = sum(_parts(saved)[3:]) / max(1, sum(_parts(first)[3:]))
    words = "keeps every parameter in FP32" if same else "changes the parameters"
    return (
        f"Mixed precision {words}; activations with the copies of weights take "
        f"{ratio:.2f}× those of {first.recipe} ({_recipe_words(saved)})"
    )


def _parts(row: Memory) -> list[int]:
    """Return bytes by component."""
    return [
        row.parameters,
        row.gradients,
        row.optimizer,
        row.activations,
        row.copies,
    ]


def _recipe_words(row: Memory) -> str:
    words = f"{row.recipe} (in hardware)" if row.simulated else row.recipe
    return f"{words}, checkpointed" if row.checkpointed else words


def _unit(most: float) -> tuple[str, float]:
    units = ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)
    return next((unit for unit in units if most >= unit[1]), ("bytes", 1.0))
