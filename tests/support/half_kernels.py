"""An oracle for whole runs: the simulation, computing by torch's own half-precision kernels.

Where they are not at hand, and for products, `simulated` takes an operation's float32 result and
rounds it. Here torch's half kernels give every result. What is left of the simulation is all it
decides: which operation runs in which format, on what, and in which order. That is torch.amp's bit
for bit, on every processor.
"""

from contextlib import contextmanager

import pytest

from mplab.simulation.mode import Mode


def is_at_hand(mode, rule, low):
    """As `Mode._is_at_hand`, whatever the device that the policy follows, also for products."""
    return mode._usual and all(t.dtype in mode.with_kernels for t in low)


@contextmanager
def half_kernels():
    """Let simulations compute so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mode, "_is_at_hand", is_at_hand)
        yield
