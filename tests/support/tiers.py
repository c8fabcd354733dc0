"""Which cases of a test `make test` runs; others wait for `make test-slow` or `make test-all`."""

import pytest


def mostly_slow(values, fast):
    """Parameters for a test, all but those among `fast` for the slow tests."""
    return _marked(pytest.mark.slow, values, fast)


def mostly_full(values, slow):
    """Parameters for a slow test, all but those among `slow` for the full ones."""
    return _marked(pytest.mark.full, values, slow)


def _marked(mark, values, but):
    values = list(values)
    strangers = [value for value in but if value not in values]
    assert strangers == [], (
        "a name that changed would leave no case in the earlier tests"
    )
    return [
        value if value in but else pytest.param(value, marks=mark) for value in values
    ]
