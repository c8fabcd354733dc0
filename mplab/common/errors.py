"""Errors that a command reports to its user."""


class UserError(Exception):
    """An error that the user can correct: printed as one line, without a traceback."""


_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""They change the direction of writing, so that a name can be shown as another."""

_CONTROL_CHARACTERS = (*range(32), *range(127, 160), *_REORDERING)

_AS_QUESTION_MARKS = {
    code: "?" for code in _CONTROL_CHARACTERS if chr(code) not in "\t\n"
}


def escape_control_characters(text: str) -> str:
    r"""Replace characters that a terminal obeys, which other people's names and files may hold.

    Examples:
        >>> escape_control_characters("a\x1b[2Jb")
        'a?[2Jb'
    """
    return text.translate(_AS_QUESTION_MARKS)
