"""The course as pages that need no Python: lessons, front page, search and reference."""
