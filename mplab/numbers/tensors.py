"""Rounding of torch tensors to a format.

The compiled loops of `mplab.numbers.kernels` round CPU tensors without a copy. On other devices
`_round_bits` states the same definition in torch operations on whole tensors; a test compares
the two.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mplab.numbers import kernels
from mplab.numbers.formats import Format, FormatLike, Overflow, Rounding, format_of
from mplab.numbers.inputs import widen
from mplab.numbers.options import Stream, Tally
from mplab.numbers.parameters import Known, RoundingParameters, loop_options
from mplab.numbers.steps import narrow

_INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}

_MASK32 = 0xFFFFFFFF


def round_tensor(
    x: Tensor,
    fmt: FormatLike,
    *,
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    overflow: Overflow = Overflow.IEEE,
    flush_inputs: bool = False,
    flush_outputs: bool = False,
    stream: Stream | None = None,
    out: Tensor | None = None,
    tally: Tally | None = None,
) -> Tensor:
    """Round each element of a tensor to a value of `fmt`: `mplab.round_to` for torch.

    Autograd does not record it. Stochastic rounding numbers the elements in row-major order,
    whatever the strides, as NumPy does.

    Args:
        x: floating point, any shape and strides, dense, on any device; what has fewer than 32
            bits is taken as float32.
        fmt: the format to round to.
        rounding: the direction; `STOCHASTIC` needs a `stream`.
        overflow: the result past the largest finite value.
        flush_inputs: take |x| below `fmt.min_normal` as zero before rounding.
        flush_outputs: replace subnormal results by zero after rounding.
        stream: source of random bits.
        out: tensor of the dtype (float32 for 16 bits), shape and device of `x` to write into; may
            be `x`.
        tally: counters to add this call's counts to.

    Returns:
        A float32 or float64 tensor like `x`, or `out`.

    Raises:
        TypeError: `x` is not a dense floating-point tensor.
        ValueError: `out` does not match `x`; a stream is missing; float32 cannot hold
            every result.

    Exactness:
        Correctly rounded, the same bits as `mplab.round_to`.

    Examples:
        >>> round_tensor(torch.tensor([0.7, 464.0]), mplab.FP8_E4M3)
        tensor([  0.6875, 448.0000])
    """
    fmt = format_of(fmt, function="round_tensor")
    x = _require_dense(x)
    target = _target(x, out)
    options = loop_options(
        "round_tensor",
        fmt,
        np.dtype(f"f{x.itemsize}"),
        rounding=rounding,
        overflow=overflow,
        flush_inputs=flush_inputs,
        flush_outputs=flush_outputs,
        stream=stream,
    )
    source = x
    if options["parameters"].numbers.itemsize > x.itemsize:
        source = _widen(x)
    direct = source is x and (rounding is not Rounding.STOCHASTIC or x.is_contiguous())
    pair = _in_common_order(x, target) if direct else None
    if pair is None:
        source = source.contiguous()
        result = torch.empty_like(source)
    else:
        source, result = pair
    counts = None if tally is None else np.zeros(8, np.int64)
    if source.device.type == "cpu":
        kernels.run(source.numpy(), result.numpy(), counts=counts, **options)
    else:
        _run_expression(source, result, counts=counts, **options)
    if tally is not None and counts is not None:
        tally.add_counts(x.numel(), counts)
    if result.dtype != target.dtype:
        result = _narrow(result, fmt)
    if pair is None:
        target.copy_(result)
    return target if out is None else out


def _require_dense(x: object) -> Tensor:
    if isinstance(x, Tensor) and x.layout is torch.strided and x.dtype in _INTEGER:
        return x.detach().resolve_neg()
    if isinstance(x, Tensor) and x.is_floating_point() and x.itemsize < 4:
        return _require_dense(x.float())
    what = f"{x.dtype}, {x.layout}" if isinstance(x, Tensor) else type(x).__name__
    raise TypeError(
        f"round_tensor: x must be a dense floating-point tensor; got {what}. "
        f"Convert it with x.float(), or use round_to for NumPy arrays."
    )


def _target(x: Tensor, out: Tensor | None) -> Tensor:
    """Return the tensor for the result: `out`, or a new one with the strides of `x`."""
    if out is None:
        return torch.empty_like(x)
    wrong = not isinstance(out, Tensor) or out.dtype != x.dtype or out.shape != x.shape
    if wrong or out.device != x.device or out.layout is not torch.strided:
        given: Any = out
        if isinstance(out, Tensor):
            given = f"{out.dtype}, {tuple(out.shape)}, {out.device}, {out.layout}"
        raise ValueError(
            f"round_tensor: out must be a dense {x.dtype} tensor of shape {tuple(x.shape)} on "
            f"{x.device}; got {given}. Make it so, or leave it out."
        )
    return out.detach()


def _in_common_order(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return contiguous views of both, dimensions permuted alike, or None if there are none."""
    if not (x.is_contiguous() and target.is_contiguous()):
        order = sorted(range(x.dim()), key=x.stride, reverse=True)
        x = x.permute(order)
        target = target.permute(order)
    plain = x.is_contiguous() and target.is_contiguous() and not target.is_neg()
    plain = plain and _same_or_apart(x, target)
    return (x, target) if plain else None


def _same_or_apart(first: Tensor, second: Tensor) -> bool:
    """Tell whether two contiguous tensors are the same memory or share none."""
    a = first.data_ptr()
    b = second.data_ptr()
    size = first.numel() * first.element_size()
    return a == b or a + size <= b or b + size <= a


def _widen(x: Tensor) -> Tensor:
    """Convert float32 to float64 exactly, also where the CPU treats subnormals as zero."""
    if x.device.type != "cpu":
        return x.double()
    return torch.from_numpy(widen(x.contiguous().numpy()))


def _narrow(x: Tensor, fmt: Format) -> Tensor:
    """Convert float64 to float32 without rounding."""
    if x.device.type != "cpu":
        single = x.float()
        if bool(((single.double() == x) | x.isnan()).all()):
            return single
    return torch.from_numpy(narrow("round_tensor", x.cpu().numpy(), fmt))


# The definition of rounding on whole tensors --------------------------------------------
def _run_expression(
    source: Tensor,
    result: Tensor,
    *,
    parameters: RoundingParameters,
    mode: Rounding,
    keys: Any = None,
    counts: np.ndarray | None = None,
) -> None:
    """Round contiguous tensors on any device, as `kernels.run` does."""
    known = Known(*map(int, parameters.numbers))
    bits = source.reshape(-1).view(_INTEGER[source.dtype])
    rounded = result.reshape(-1).view(bits.dtype)
    for begin in range(0, bits.numel(), 1 << 32):
        piece = bits[begin : begin + (1 << 32)]
        random = _random_bits(piece, *keys(begin >> 32)) if keys else None
        r, flags = _round_bits(piece, known, int(mode), random, counts is not None)
        rounded[begin : begin + (1 << 32)] = r
        if counts is not None and flags is not None:
            counts += (
                torch.stack([((flags >> bit) & 1).sum() for bit in range(8)])
                .cpu()
                .numpy()
            )


def _random_bits(like: Tensor, key0: int, key1: int) -> Tensor:
    """Return 32 random bits per element, as int64: `kernels._random_bits` on tensors."""
    h = torch.arange(like.numel(), dtype=torch.int64, device=like.device) ^ (
        key0 & _MASK32
    )
    h = ((h ^ (h >> 16)) * 0x21F0AAAD) & _MASK32
    h = ((h ^ (h >> 15) ^ key1) * 0xD35A2D97) & _MASK32
    h = ((h ^ (h >> 15)) * 0x31848BAB) & _MASK32
    few: Tensor = (h ^ (h >> 14)) & ~(key0 >> 32)
    return few


def _as_float(bits: int, dtype: torch.dtype) -> float:
    return float(np.array(bits, f"i{dtype.itemsize}").view(f"f{dtype.itemsize}"))


def _round_in_place(
    a: Tensor,
    shift: int,
    mode: int,
    away: Tensor,
    all_odd: int,
    odd_codes: int,
    random: Tensor | None,
) -> Tensor:
    low = (1 << shift) - 1
    kept = a >> shift
    is_odd = (kept != 0).to(a.dtype) if all_odd else (kept ^ odd_codes) & 1
    if mode == Rounding.TIES_TO_EVEN:
        addend: Any = ((low >> 1) + is_odd) & low
    elif mode == Rounding.TIES_TO_AWAY:
        addend = (low + 1) >> 1
    elif mode == Rounding.TOWARD_ZERO:
        addend = 0
    elif mode == Rounding.TO_ODD:
        addend = (1 - is_odd) * low
    elif random is not None:
        addend = random << (shift - 32) if shift > 32 else random >> (32 - shift)
        addend = addend.to(a.dtype)
    else:
        addend = torch.where(away, low, 0).to(a.dtype)
    rounded: Tensor = (a + addend) & ~low
    return rounded


def _round_to_grid(
    a: Tensor, known: Known, mode: int, away: Tensor, random: Tensor | None
) -> Tensor:
    dtype = torch.float32 if a.dtype == torch.int32 else torch.float64
    anchor = _as_float(known.anchor, dtype)
    quantum = _as_float(known.quantum, dtype)
    x = a.view(dtype)
    near = (x + anchor) - anchor
    if mode == Rounding.TIES_TO_EVEN:
        return near.view(a.dtype)
    down = torch.where(near.view(a.dtype) > a, near - quantum, near)
    if mode == Rounding.TIES_TO_AWAY:
        up = (x - down) + (x - down) >= quantum
    elif mode == Rounding.TOWARD_ZERO:
        return down.view(a.dtype)
    elif mode == Rounding.TO_ODD:
        up = ((down + anchor).view(a.dtype) & 1 == 0) & (down.view(a.dtype) != a)
    elif random is not None:
        fraction = ((x - down) * _as_float(known.per_quantum, dtype)).double()
        up = fraction * 4294967296.0 >= 4294967296.0 - random.double()
    else:
        up = away & (down.view(a.dtype) != a)
    return torch.where(up, down + quantum, down).view(a.dtype)


def _round_bits(
    bits: Tensor, known: Known, mode: int, random: Tensor | None, flagging: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute the bits of the results and the flag bytes: `kernels._round_bits` on tensors."""
    parity = known.all_odd, known.odd_codes
    original = bits & ~known.sign_bit
    sign = bits & known.sign_bit
    away = (sign == 0) == (mode == Rounding.TOWARD_POSITIVE)
    a = torch.where(original < known.flush_in, 0, original)
    r = _round_in_place(a, known.shift, mode, away, *parity, random)
    if known.grid_below:
        r = torch.where(
            a < known.grid_below, _round_to_grid(a, known, mode, away, random), r
        )
    past = r > known.max_finite
    limit: Any = known.beyond
    if mode == Rounding.TO_ODD:
        finite = original != known.infinity
        limit = torch.where(finite, known.to_odd_beyond, limit).to(r.dtype)
    elif Rounding.TOWARD_ZERO <= mode <= Rounding.TOWARD_NEGATIVE:
        inward = ~away | (mode == Rounding.TOWARD_ZERO)
        inward &= original != known.infinity
        limit = torch.where(inward, known.max_finite, limit).to(r.dtype)
    r = torch.where(past, limit, r)
    is_nan = (original > known.infinity) | ((sign & known.no_sign != 0) & (a > 0))
    r = torch.where(r < known.floor, known.floor_value, r)
    sign = torch.where(r == 0, sign & ~known.no_minus_zero, sign & ~known.no_sign)
    result = torch.where(is_nan | (r > known.infinity), known.nan, r | sign)
    if not flagging:
        return result, None
    unbounded = _round_in_place(a, known.tiny_shift, mode, away, *parity, random)
    inexact = (original <= known.infinity) & (is_nan | (r != original))
    refused = (is_nan & (original <= known.infinity)) | (
        (original == known.infinity) & (r > known.infinity)
    )
    conditions = (
        inexact,
        ~is_nan & inexact & (unbounded < known.min_normal),
        past & ~is_nan & (original < known.infinity),
        ((original > known.infinity) & (original & known.quiet == 0)) | refused,
        ~is_nan & (r == 0) & (original != 0),
        ~is_nan & (r > 0) & (r < known.min_normal),
        original > known.infinity,
        original == known.infinity,
    )
    flags = torch.zeros_like(bits, dtype=torch.uint8)
    for bit, condition in enumerate(conditions):
        flags |= condition.to(torch.uint8) << bit
    return result, flags
