"""On one machine, the elementary functions of others: each may miss the right result by an ulp.

A vector library promises less than one ulp, not the nearest number, and chooses its kernel by the
processor. What equals torch's own FP16 and BF16 kernels within this mode does not depend on it.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

INEXACT = """
    sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sigmoid pow erf
""".split()  # noqa: SIM905


class OffByAnUlp(TorchDispatchMode):
    """Move each inexact result of such a function in float32 or float64 by an ulp.

    Those of low tensors stay: they come from torch's own low kernels. A result of few bits is taken
    for exact. An odd significand goes up, so that one just below a midpoint of a low format becomes
    the midpoint.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        integers = {torch.float32: torch.int32, torch.float64: torch.int64}
        if name not in INEXACT or out.dtype not in integers:
            return out
        bits = out.view(integers[out.dtype])
        way = torch.where(bits % 2 == 1, torch.inf, -torch.inf).to(out)
        exact = ~out.isfinite() | (out == 0) | (bits & 0xFFF == 0)
        return out.copy_(torch.where(exact, out, torch.nextafter(out, way)))
