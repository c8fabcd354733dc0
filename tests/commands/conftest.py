"""What the tests of commands share."""

import page as pages
import pytest


@pytest.fixture(scope="module")
def browser():
    """An installed Chromium, for pages in files."""
    with pages.browser() as running:
        yield running
