"""Errors that a command reports to its user."""


class UserError(Exception):
    """An error that the user can correct: printed as one line, without a traceback."""
