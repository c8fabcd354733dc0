"""How much code a text holds: in tokens, because lines can be folded."""

import ast
import io
import tokenize

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_tokens(text):
    """The line of each token of code; docstrings and comments are left out."""
    documentation = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            documentation |= set(range(node.lineno, node.end_lineno + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    starts = [token.start[0] for token in tokens if token.type not in LAYOUT]
    return [line for line in starts if line not in documentation]
