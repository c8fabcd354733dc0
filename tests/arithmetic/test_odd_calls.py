"""What the arithmetic says to odd calls: the function and the argument, by name."""

import numpy as np
import pytest
from odd_calls import ENDLESS, ODD, Asked, front_test, refusal_test, without

from mplab import (
    BF16,
    FORMATS,
    FP8_E4M3,
    FP16,
    FP32,
    Format,
    Overflow,
    Rounding,
    Stream,
    Tally,
    Tininess,
)
from mplab import arithmetic as lab
from mplab.arithmetic import FloatArray
from mplab.numbers import FP8_E8M0

PAIR = np.array([1.0, 2.0])
SQUARE = np.ones((2, 2))
WIDE = Format("E11M20", exponent_bits=11, precision=21)

RULES = {
    "rounding": "member",
    "overflow": "member",
    "flush_inputs": "switch",
    "flush_outputs": "switch",
    "stream": "object",
    "tally": "object",
}
RIGHT_RULES = {
    "rounding": Rounding.TIES_TO_EVEN,
    "overflow": Overflow.IEEE,
    "flush_inputs": False,
    "flush_outputs": False,
    "stream": None,
    "tally": None,
}
HOW = {
    "accumulator_format": "format",
    "product_format": (without("format", None),),
    "output_format": (without("format", None),),
    "order": ("word", ("blocked(0)",)),
    "rounding": "member",
    "overflow": "member",
    "stream": "object",
}
RIGHT_HOW = {
    "accumulator_format": FP16,
    "product_format": None,
    "output_format": None,
    "order": "sequential",
    "rounding": Rounding.TIES_TO_EVEN,
    "overflow": Overflow.IEEE,
    "stream": None,
}
MISFITS = (np.ones(3), np.ones((2, 3)))
NO_VECTORS = (1.0, np.ones((2, 2)), np.ones((1, 1, 2)), np.ones(3))
NOT_SQUARE = (1.0, np.ones(2), np.ones((2, 3)), np.ones((1, 2, 2)), np.ones((0, 0)))
NO_MATRICES = (1.0, np.ones(2), np.ones((3, 3)), np.ones((1, 2, 2)))


def reduction(function, right, kinds, **how):
    """A function that takes the options of a sum."""
    return Asked(function.__name__, function, {**RIGHT_HOW, **right, **how}, {**HOW, **kinds})


def operation(function, *names):
    """A function that takes the rules of an operation."""
    numbers = {n: ("values", MISFITS if len(names) > 1 else ()) for n in names}
    return Asked(
        function.__name__,
        function,
        {**dict.fromkeys(names, PAIR), "fmt": FP16, **RIGHT_RULES},
        {**numbers, "fmt": "format", **RULES},
    )


def the_exceptions(a, b, fmt, tininess, **rules):
    return lab.raised(lab.add, a, b, fmt, tininess=tininess, **rules)


AXIS = {"x": "values", "axis": "axis"}
SEED = ("whole", (-1, 2**64))
OPERATIONS = [
    *[operation(f, "a", "b") for f in (lab.add, lab.subtract, lab.multiply, lab.divide)],
    operation(lab.remainder, "a", "b"),
    operation(lab.sqrt, "a"),
    operation(lab.fma, "a", "b", "c"),
    Asked(
        "raised",
        lambda operation: lab.raised(operation, PAIR, PAIR, FP16),
        {"operation": lab.add},
        {"operation": "object"},
    ),
    Asked("raised", the_exceptions, {"a": 1.0, "b": 1.0, "fmt": FP16, "tininess": Tininess.AFTER},
          {"tininess": "member"}),
]  # fmt: skip
REDUCTIONS = [
    reduction(lab.matmul, {"a": SQUARE, "b": SQUARE, "split_k": 2},
              {"a": ("values", NO_MATRICES), "b": ("values", NO_MATRICES),
               "split_k": ("count", (0, 3))}),
    Asked("distinct_sums", lab.distinct_sums, {"x": SQUARE, "fmt": FP16, "orders": 3, "seed": 1},
          {"x": "values", "fmt": "format", "orders": ("count", (0,)), "seed": SEED}),
    reduction(lab.dot, {"a": PAIR, "b": PAIR},
              {"a": ("values", NO_VECTORS), "b": ("values", NO_VECTORS)}),
    *[reduction(f, {"x": SQUARE, "axis": 1}, AXIS) for f in (lab.sum, lab.norm, lab.mean)],
    reduction(lab.cumsum, {"x": SQUARE, "axis": 0}, {**AXIS, "order": ("word", ("pairwise",))}),
    reduction(lab.variance, {"x": SQUARE, "axis": 0, "ddof": 0, "method": "two-pass"},
              {**AXIS, "ddof": ("count", (1.1,)), "method": "word"}),
    reduction(lab.softmax, {"x": SQUARE, "axis": -1, "shift": True},
              {**AXIS, "shift": "switch", "axis": ("axis", (None,))}),
    reduction(lab.running_error, {"a": PAIR, "b": PAIR},
              {"a": ("values", NO_VECTORS), "b": (without("values", None), NO_VECTORS),
               "order": ("word", ("pairwise",))}),
    Asked("exact_sum", lab.exact_sum, {"a": PAIR, "b": PAIR},
          {"a": ("values", MISFITS), "b": (without("values", None), MISFITS)}),
]  # fmt: skip
BOUNDS = [
    Asked("roundings", lab.roundings, {"n": 3, "order": "kahan"}, {"n": "count", "order": "word"}),
    *[
        Asked(f.__name__, f, {"n": 3, "fmt": FP16}, {"n": ("count", ODD["real"]), "fmt": "format"})
        for f in (lab.linear_bound, lab.gamma)
    ],
    Asked(
        "probabilistic_bound",
        lab.probabilistic_bound,
        {"n": 3, "fmt": FP16, "confidence": 1.0},
        {"n": "count", "fmt": "format", "confidence": ("real", (0, -1))},
    ),
]
MATRIX, COLUMN = (
    ("numbers", NOT_SQUARE, (SQUARE * np.nan,)),
    ("numbers", NO_VECTORS, (PAIR * np.inf,)),
)
LINEAR = [
    *[
        Asked(f.__name__, f, {"a": SQUARE, "fmt": FP16, **RIGHT_RULES},
              {"a": ("values", NOT_SQUARE), "fmt": "format", **RULES})
        for f in (lab.lu, lab.cholesky)
    ],
    Asked("cholesky", lambda a: lab.cholesky(a, FP16), {"a": SQUARE},
          {"a": (([[1.0, 2.0], [3.0, 4.0]],),)}),
    Asked("solve_triangular", lab.solve_triangular,
          {"t": SQUARE, "b": PAIR, "fmt": FP16, "lower": True, **RIGHT_RULES},
          {"t": ("values", NOT_SQUARE), "b": ("values", NO_VECTORS), "fmt": "format",
           "lower": "switch", **RULES}),
    Asked("backward_error", lab.backward_error, {"a": SQUARE, "x": PAIR, "b": PAIR},
          {"a": MATRIX, "x": COLUMN, "b": COLUMN}),
    Asked("condition", lab.condition, {"a": SQUARE, "p": ENDLESS[1]},
          {"a": MATRIX, "p": (without("real", ENDLESS[1]), (0, 1.5, -2, 3))}),
    Asked("refine", lab.refine,
          {"a": SQUARE, "b": PAIR, "factor_format": FP16, "residual_format": None,
           "method": "gmres", "scale": True, "limit": 3},
          {"a": MATRIX, "b": COLUMN, "factor_format": "format",
           "residual_format": (without("format", None), (WIDE,)), "method": "word",
           "scale": "switch", "limit": "count"}),
]  # fmt: skip
UPDATES = [
    Asked(
        "Weights",
        lab.Weights,
        {"values": PAIR, "fmt": FP16, "method": "kahan", "seed": 0},
        {"values": "values", "fmt": "format", "method": "word", "seed": SEED},
    ),
    Asked(
        "Weights.add",
        lambda update: lab.Weights(PAIR, BF16).add(update),
        {"update": 1.0},
        {"update": ("numbers", MISFITS, (np.ones((1, 2)),))},
    ),
    Asked(
        "path",
        lab.path,
        {"start": 1.0, "update": 0.5, "steps": 2, "fmt": BF16, "method": "master", "seed": 0},
        {"start": "numbers", "update": "real", "steps": "count", "fmt": "format",
         "method": "word", "seed": SEED},
    ),
    Asked(
        "descend",
        lab.descend,
        {"fmt": BF16, "method": "nearest", "learning_rate": 0.5, "steps": 2, "seed": 0},
        {"fmt": "format", "method": "word", "learning_rate": "real", "steps": ("count", (0,)),
         "seed": SEED},
    ),
]  # fmt: skip
AWAY = (Rounding.TIES_TO_AWAY, Rounding.TOWARD_POSITIVE)
ROW, ONE = np.ones((1, 32)), np.ones((1, 1))
NO_PAIRS = ((FP16, "FP16"), (FP16,) * 3, (float, FP16), (float, float), (FP16, BF16))
UNITS = [
    Asked(
        "MatrixUnit",
        lab.MatrixUnit,
        {"terms": 4, "fraction_bits": 23, "written_bits": 23, "products_normalised": False,
         "alignment": Rounding.TOWARD_ZERO, "writing": Rounding.TOWARD_ZERO, "group": 1,
         "sum_bits": 31, "lanes": 2, "flush": False},
        {"terms": ("count", (0, 4096)), "fraction_bits": (without("count", None), (39,)),
         "group": ("count", (0, 8)), "sum_bits": (without("count", None), (39,)),
         "lanes": ("count", (0, 3)), "flush": "switch",
         "written_bits": ("count", (0, 24)), "products_normalised": "switch",
         "alignment": ("member", (Rounding.STOCHASTIC, *AWAY)),
         "writing": ("member", (Rounding.STOCHASTIC,))},
    ),
    Asked("unit_of", lab.unit_of, {"architecture": "hopper", "input_format": FP16},
          {"architecture": "word", "input_format": ("format", (FP32, *NO_PAIRS))}),
    Asked("unit_of", lab.unit_of,
          {"architecture": "blackwell", "input_format": FP8_E4M3, "scale_format": FP8_E8M0},
          {"scale_format": (without("format", None), (FP16,))}),
    Asked(
        "mma",
        lab.mma,
        {"a": ROW, "b": ROW.T, "architecture": "blackwell", "input_format": FP8_E4M3,
         "scales": (ONE, ONE), "scale_format": FP8_E8M0},
        {"scales": (without("values", None), ((ONE,), (ONE, ROW), (ONE, None), (ONE, 3 * ONE))),
         "scale_format": ("format", (FP16,)), "input_format": ((FP16, float),),
         "output_format": ((FP16, float),)},
    ),
    Asked(
        "mma",
        lab.mma,
        {"a": SQUARE, "b": SQUARE, "c": SQUARE, "architecture": "ada", "input_format": FP16,
         "output_format": FP32, "promote_every": 8, "zeros_align": False, "exponent_floor": None,
         "signed_underflow": True},
        {"a": ("values", NO_MATRICES), "b": ("values", NO_MATRICES),
         "c": (without("values", None), NO_MATRICES), "architecture": "word",
         "input_format": ("format", (FP32, *NO_PAIRS)), "output_format": ("format", (BF16, float)),
         "promote_every": (without("count", None), (0, 7)), "zeros_align": "switch",
         "exponent_floor": (without("whole", None), (-901, 256)), "signed_underflow": "switch"},
    ),
]  # fmt: skip
PRODUCT = {"a": SQUARE, "b": SQUARE, "unit": FP16, "architecture": "hopper", "slices": 3}
NO_UNIT = ([x for x in ODD["word"] if x is not FP16], (FORMATS["FP8_E8M0"], FORMATS["FP8_E3M4"]))
EMULATION = [
    Asked("slice_bits", lab.slice_bits, {"k": 64, "fmt": FP16, "accumulator_bits": 24},
          {"k": ("count", (0, 2**24 + 1)), "fmt": "format", "accumulator_bits": ("count", (5,))},
          {"accumulator_bits": ("k",)}),
    Asked("split", lab.split, {"x": SQUARE, "slices": 3, "bits": 7, "axis": 0},
          {"x": ("numbers", ENDLESS), "slices": ("count", (0,)), "bits": ("count", (0, 1001)),
           "axis": ("axis", (None,))}),
    *[
        Asked(f.__name__, f, PRODUCT,
              {"a": ("numbers", NO_MATRICES), "b": ("numbers", NO_MATRICES), "unit": NO_UNIT,
               "architecture": "word", "slices": (without("count", None), (0,))})
        for f in (lab.matmul_fp64, lab.emulation_bound)
    ],
]  # fmt: skip
NO_RATE = ([x for x in ODD["object"] if not callable(x)], (lambda y: None, lambda y: 1.0))
STEPS = [
    Asked("integrate", lab.integrate,
          {"f": lambda y: -y, "start": PAIR, "dt": 0.5, "steps": 2, "fmt": FP16,
           "scheme": "rk4", "method": "kahan", "seed": 3},
          {"f": NO_RATE, "start": "numbers", "dt": "real", "steps": "count", "fmt": "format",
           "scheme": "word", "method": "word", "seed": SEED}),
    Asked("freezes", lab.freezes, {"f": lambda y: -y, "y": PAIR, "dt": 0.5, "fmt": FP16},
          {"f": NO_RATE, "y": "values", "dt": "real", "fmt": "format"}),
]  # fmt: skip
X = FloatArray(PAIR, FP16)
CLASS = [
    Asked("FloatArray", FloatArray, {"values": PAIR, "fmt": FP16},
          {"values": "values", "fmt": "format"}),
    Asked("FloatArray.rounded", FloatArray.rounded,
          {"values": PAIR, "fmt": FP16, "rounding": Rounding.TOWARD_ZERO},
          {"values": "numbers", "fmt": "format", "rounding": ("member", (Rounding.STOCHASTIC,))}),
    Asked("FloatArray.to", X.to, {"fmt": BF16, "rounding": Rounding.TOWARD_ZERO},
          {"fmt": "format", "rounding": ("member", (Rounding.STOCHASTIC,))}),
    Asked("sum", X.sum, {"order": "pairwise"}, {"order": "word"}),
]  # fmt: skip
PLAIN = [x for x in ODD["values"] if not isinstance(x, np.ma.MaskedArray)]
OPERATORS = [
    *[
        Asked(name, call, {argument: 1.0}, {argument: (PLAIN, MISFITS)})
        for name, argument, call in (
            ("add", "b", lambda b: X + b),
            ("subtract", "b", lambda b: X - b),
            ("subtract", "a", lambda a: X.__rsub__(a)),
            ("multiply", "b", lambda b: X * b),
            ("divide", "b", lambda b: X / b),
            ("divide", "a", lambda a: X.__rtruediv__(a)),
        )
    ],
    Asked("matmul", lambda b: X @ b, {"b": PAIR}, {"b": (PLAIN, NO_VECTORS[2:])}),
    Asked("matmul", lambda a: X.__rmatmul__(a), {"a": PAIR}, {"a": (PLAIN, NO_VECTORS[2:])}),
    *[
        Asked(sign, lambda other, compare=compare: compare(other), {"other": 1.0},
              {"other": ("numbers", MISFITS)}, {"other": ("operands",)})
        for sign, compare in (
            ("<", X.__lt__), ("<=", X.__le__), (">", X.__gt__), (">=", X.__ge__),
        )
    ],
]  # fmt: skip
EVERYTHING = [
    *(*OPERATIONS, *REDUCTIONS, *BOUNDS, *LINEAR, *UPDATES, *UNITS, *EMULATION, *STEPS),
    *(*CLASS, *OPERATORS),
]
NO_FUNCTIONS = {
    *("Rules", "Accumulation", "ORDERS", "METHODS", "ARCHITECTURES", "RunningError", "Descent"),
    *("Factors", "Refinement"),
}


test_every_odd_call_is_refused_by_name = refusal_test(EVERYTHING)
test_every_name_of_the_front_is_asked = front_test(EVERYTHING, lab, but=NO_FUNCTIONS, least=3000)


def test_a_stochastic_call_without_a_stream_and_a_misspelt_option_are_refused_by_name():
    how = {"accumulator_format": FP16, "rounding": Rounding.STOCHASTIC}
    for name, call in (
        ("add", lambda: lab.add(1.0, 1.0, FP16, rounding=Rounding.STOCHASTIC)),
        ("sum", lambda: lab.sum(PAIR, **how)),
        ("softmax", lambda: lab.softmax(PAIR, **how)),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: stream must be a Stream"):
            call()
    with pytest.raises(TypeError, match=r"^add: options must be among .*; got 'flush_input'"):
        lab.add(1.0, 1.0, FP16, flush_input=True)
    with pytest.raises(TypeError, match=r"^raised: arguments must be the 3 operands of fma"):
        lab.raised(lab.fma, 1.0, 1.0, FP16)
    with pytest.raises(TypeError, match=r"^raised: arguments must be the 1 operand of sqrt"):
        lab.raised(lab.sqrt)


def test_what_is_right_though_unusual_stays_right():
    everything = {**RIGHT_RULES, "rounding": Rounding.STOCHASTIC, "stream": Stream(1)}
    assert lab.add(1.0, 1.0, FP16, **{**everything, "tally": Tally()}) == 2.0
    assert lab.sum([[1.0, 2.0], [3.0, 4.0]], axis=np.int64(-1), **RIGHT_HOW).tolist() == [3.0, 7.0]
    assert lab.variance(PAIR, ddof=np.int8(1), accumulator_format=FP32) == 0.5
    assert lab.sum(PAIR, **{**RIGHT_HOW, "order": f"blocked({10**30})"}) == 3.0
    assert lab.probabilistic_bound(4, FP16, confidence=np.float32(2)) == 4 * FP16.unit_roundoff
    assert lab.sum(PAIR, accumulator_format=FP16, output_format=FP8_E4M3) == 3.0
    assert lab.add("1.5", "0.5", FP16) == 2.0
