"""The words of the API: the docstrings that stand under the fields of records, which Python itself forgets.

They are read from the source, so that a field is described once, where it is defined; `kubectl explain` shows them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache

from fairlease.model.record import Record


@cache
def field_words(kind: type[Record]) -> dict[str, str]:
    """What each field of a record means, by its name in Python; a field without words is a mistake."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef), kind
    words: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(text, ast.Expr), f"{kind.__name__}.{field.target.id} has no words under it"
            assert isinstance(text.value, ast.Constant), f"{kind.__name__}.{field.target.id} has no words under it"
            words[field.target.id] = " ".join(str(text.value.value).split())
    return words


def words(kind: type[Record]) -> str:
    """What a record means."""
    return " ".join((inspect.getdoc(kind) or "").split())
