"""A6: what the notebook says of its sums, and the picture that it offers."""

import re
from fractions import Fraction
from functools import partial

import corpus
import nbformat
import numpy as np
import pytest
from corpus import ROOT, answer

from mplab import FP8_E4M3, FP8_E5M2
from mplab.course.pictures import Picture

pytestmark = pytest.mark.slow

cases = partial(corpus.hidden_cases, "a6")


def test_sums_of_products_are_exact_in_float64_whatever_their_order():
    """What the notebook says of `@`; the largest and the least product that a sum can meet."""
    for which, x, _, g in cases("product"):
        terms = {
            "output": x.shape[1],
            "grad_input": g.shape[1],
            "grad_weight": g.shape[0],
        }[which]
        first = FP8_E4M3 if which == "output" else FP8_E5M2
        most = terms * Fraction(first.max_finite) * Fraction(FP8_E4M3.max_finite)
        assert (
            most / Fraction(first.min_subnormal) / Fraction(FP8_E4M3.min_subnormal)
            <= 2**53
        )


def test_the_picture_that_the_sheet_offers_shows_the_answer_s_own_shares():
    notebook = nbformat.read(ROOT / "a6" / "a6.ipynb", as_version=4)
    [text] = [c.source for c in notebook.cells if c.id == "a6-look"]
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    space = {"np": np, "FP8_E4M3": FP8_E4M3, "delayed_shares": answer("a6", "delayed")}
    statements, last = code.rsplit("pictures.scaling_windows", 1)
    exec(statements, space)
    picture = eval("pictures.scaling_windows" + last.strip(), space)
    assert isinstance(picture, Picture)
