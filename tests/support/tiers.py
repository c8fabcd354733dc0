"""Which cases of a test `make check` runs, and which wait for `make test`."""

import pytest


def mostly_slow(values, fast):
    """Parameters for a test, all but those among `fast` for the slow tests."""
    values = list(values)
    strangers = [value for value in fast if value not in values]
    assert strangers == [], "a name that changed would leave no case in `make check`"
    return [
        value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
