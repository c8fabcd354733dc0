"""What the tests of explorers share."""

import page as pages
import pytest


@pytest.fixture(scope="module")
def chromium():
    """An installed Chromium, for explorers in pages of their own."""
    with pages.browser() as running:
        yield running
