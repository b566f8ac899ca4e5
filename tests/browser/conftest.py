"""A real Chromium for the tests of pages; where none is there, that is said, and fails in CI."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.browser.chromium import Chromium
from tools.browser import Missing, find


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One browser for all tests of a session."""
    try:
        program = find()
    except Missing as missing:
        (pytest.fail if "CI" in os.environ else pytest.skip)(str(missing))
    browser = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
