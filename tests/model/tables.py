"""Table tests keyed by a sentence: the sentence is what pytest shows when a row fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def table(names: str, rows: Mapping[str, Any]) -> pytest.MarkDecorator:
    columns = names.split()
    values = [row if len(columns) > 1 else (row,) for row in rows.values()]
    return pytest.mark.parametrize(columns, values, ids=list(rows))
