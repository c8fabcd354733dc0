"""Answers to A1: other right programs, and edits that make the solution wrong."""

RIGHT = {
    "fields": [
        """
def fields_of(code, exponent_bits, trailing_bits):
    bits = f"{code:0{1 + exponent_bits + trailing_bits}b}"
    return int(bits[0]), int(bits[1 : 1 + exponent_bits], 2), int(bits[1 + exponent_bits :], 2)
"""
    ],
    "value": [
        """
def value_of(code, exponent_bits, trailing_bits):
    sign, e, m = fields_of(code, exponent_bits, trailing_bits)
    if e == (1 << exponent_bits) - 1:
        return float("nan") if m else float("-inf" if sign else "inf")
    significand = m / 2**trailing_bits + (e > 0)
    power = max(e, 1) - 2 ** (exponent_bits - 1) + 1
    return (-1.0) ** sign * significand * 2.0**power
"""
    ],
    "max_finite": [
        """
def max_finite(exponent_bits, trailing_bits):
    return value_of(((2**exponent_bits - 1) << trailing_bits) - 1, exponent_bits, trailing_bits)
"""
    ],
    "encode": [
        """
def encode_nearest(x, exponent_bits, trailing_bits):
    sign = int(math.copysign(1, x) < 0) << (exponent_bits + trailing_bits)
    low, high = 0, (2**exponent_bits - 1) << trailing_bits
    limit = high
    def value(code):
        if code == limit:
            return math.ldexp(1, 2 ** (exponent_bits - 1))
        return value_of(code, exponent_bits, trailing_bits)
    if abs(x) >= value(limit):
        return sign + limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value(middle) <= abs(x) else (low, middle)
    down, up = abs(x) - value(low), value(high) - abs(x)
    return sign + (low if down < up or (down == up and low % 2 == 0) else high)
"""
    ],
    "finite_codes": [
        "finite_codes = sum(math.isfinite(value_of(c, 5, 3)) for c in range(512))"
    ],
}

WRONG = {
    "fields": [
        (
            "code >> (exponent_bits + trailing_bits), ",
            "0, ",
        ),
        (
            ", exponent, trailing",
            ", trailing, exponent",
        ),
        (
            "trailing = ",
            "exponent_bits, trailing_bits = 5, 2; trailing = ",
        ),
    ],
    "value": [
        (
            "if exponent == 2**exponent_bits - 1:",
            "if False:",
        ),
        ("-magnitude if sign else magnitude", "magnitude"),
    ],
    "max_finite": [
        (
            "return math.ldexp(2 - 2.0**-trailing_bits, emax)",
            "return float(int(math.ldexp(2 - 2.0**-trailing_bits, emax)))",
        ),
        (
            "(exponent_bits - 1) - 1",
            "(exponent_bits - 1) - 2",
        ),
        (
            "**-trailing_bits",
            "**-(trailing_bits + 1)",
        ),
        (
            "emax = 2 ** (exponent_bits - 1) - 1",
            "emax = 2 - 2 ** (exponent_bits - 1)",
        ),
    ],
    "encode": [
        (
            "    bias = ",
            "    import struct\n    x = struct.unpack('f', struct.pack('f', x))[0]\n    bias = ",
        ),
        ("min(code, infinity)", "code"),
        (
            "    steps = ",
            "    if abs(x) < 2.0 ** (1 - bias):\n        return sign\n    steps = ",
        ),
        (
            "= (2**exponent_bits - 1) << trailing_bits",
            "= ((2**exponent_bits - 1) << trailing_bits) - 1",
        ),
    ],
    "finite_codes": [
        ("2 * (2**8 - 2**3)", "495"),
        ("2 * (2**8 - 2**3)", "2 * (2**8 - 2**5)"),
    ],
}
