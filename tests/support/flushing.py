"""A thread whose processor takes subnormal numbers as zero."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch


def where_subnormals_are_flushed(compute):
    """The result of a function that runs in such a thread."""

    def run():
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor cannot flush subnormals")
        try:
            assert not np.array([1], np.int64).view(np.float64) * 1.0
            return compute()
        finally:
            torch.set_flush_denormal(False)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
