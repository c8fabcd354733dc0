"""Compile what numba compiles, half of it in each of two processes.

Workers that meet the same loop at the same time would compile it twice.
"""

import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np

import mplab
from mplab import FP8_E4M3FNUZ, FP16, Rounding, Stream
from mplab.arithmetic import reductions
from mplab.numbers import kernels
from mplab.numbers.parameters import rounding_parameters
from mplab.numbers.step_loops import STEPS, ufunc_of


def arrays():
    """Numbers of each width, with the facts of a format and of one that asks for what is rare."""
    for dtype in (np.float32, np.float64):
        for fmt in (FP16, FP8_E4M3FNUZ):
            yield np.zeros(3, dtype), rounding_parameters(fmt, np.dtype(dtype))


def _keys(mode):
    """The keys of a stream, where the mode takes them."""
    return Stream(0).keys() if mode is Rounding.STOCHASTIC else None


def rounding_and_reductions() -> None:
    """The loops that only round, and those that sum."""
    for mode in Rounding:
        for x, parameters in arrays():
            kernels.run(x, x.copy(), parameters, mode, keys=_keys(mode))
        stream = Stream(0) if mode is Rounding.STOCHASTIC else None
        for x in (np.ones(3), np.ones((3, 2))):  # one sum, and two side by side
            reductions.sum(
                x, axis=0, accumulator_format=FP16, rounding=mode, stream=stream
            )


def flags_and_addresses() -> None:
    """The loops that write or count flags, and those that take addresses."""
    from mplab.health import digest  # with torch, which takes seconds

    for mode in Rounding:
        for x, parameters in arrays():
            keys = _keys(mode)
            kernels.run(x, np.zeros(3, np.uint8), parameters, mode, keys=keys)
            kernels.run(
                x,
                x.copy(),
                parameters,
                mode,
                keys=keys,
                counts=np.zeros(8, np.int64),
            )
    for mode in (Rounding.TIES_TO_EVEN, Rounding.STOCHASTIC):  # how a simulation rounds
        for special_cases in (False, True):
            for what in ("round", "count"):
                kernels.loop_at(what, int(mode), special_cases)
    for step, fmt, kind in itertools.product(STEPS, (FP16, FP8_E4M3FNUZ), "df"):
        ufunc_of(step, fmt, "BHII"[(fmt.bits - 1) // 8] if step == "decode" else kind)
    for integer in (np.int8, np.int16, np.int32):
        loop = digest._on_processor(np.dtype(integer).itemsize)
        loop(np.zeros(3, integer), digest._WEIGHTS, np.zeros(2, np.int64))


HALVES = {
    half.__name__: half for half in (rounding_and_reductions, flags_and_addresses)
}

PACKAGE = Path(mplab.__file__).parent
STAMP = PACKAGE / "numbers" / "__pycache__" / f"compiled-{numba.__version__}"
"""Beside what numba keeps: newer than all sources if nothing has changed since."""


def is_done() -> bool:
    """Whether an earlier call has compiled everything, and into the same folder."""
    newest = max(path.stat().st_mtime for path in PACKAGE.rglob("*.py"))
    here = "NUMBA_CACHE_DIR" not in os.environ
    return here and STAMP.exists() and STAMP.stat().st_mtime > newest


if __name__ == "__main__":
    if chosen := sys.argv[1:]:
        HALVES[chosen[0]]()
    elif not is_done():
        halves = [subprocess.Popen([sys.executable, __file__, name]) for name in HALVES]
        if any([half.wait() for half in halves]):
            sys.exit(1)
        with contextlib.suppress(OSError):
            STAMP.touch()
