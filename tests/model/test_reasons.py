"""Reasons are API: words that Kubernetes takes, codes that tell them apart, and none that nobody gives."""

import re
from pathlib import Path

from fairlease.reason import COVER_CAUSES, Reason

SOURCE = Path(__file__).parents[2] / "src" / "fairlease"
TAKEN = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
"""What the API server takes as the reason of a condition; one that it refuses would stop every later write of that status."""
EVENT_REASON_MAX = 128
"""Characters of the reason of an Event."""


def test_every_reason_is_a_word_that_the_api_server_takes() -> None:
    for reason in Reason:
        assert reason.value == reason.name
        assert TAKEN.fullmatch(reason.value)
        assert len(reason.value) <= EVENT_REASON_MAX


def test_codes_tell_reasons_apart_and_stand_in_their_order() -> None:
    codes = [reason.code for reason in Reason]
    assert codes == sorted(set(codes))
    assert [cause.code for cause in COVER_CAUSES] == [reason.code for reason in Reason if reason.code < 200]


def test_every_reason_says_what_would_change_it() -> None:
    assert all(reason.remedy and reason.alone for reason in Reason)


def test_a_reason_alone_tells_no_remedy_that_hangs_on_whether_waiting_helps() -> None:
    silent = {reason for reason in Reason if not reason.plain_remedy}
    assert silent == {
        Reason.WindowClosed,
        Reason.LendingCapExceeded,
        Reason.ConcurrencyCapExceeded,
        Reason.AggregateCapExceeded,
    }
    assert all("wait" in reason.remedy and "wait" not in reason.alone for reason in silent)


def test_no_reason_is_kept_that_nobody_gives() -> None:
    given = {
        name
        for path in SOURCE.rglob("*.py")
        if path.name != "reason.py"
        for name in re.findall(r"\bReason\.(\w+)", path.read_text())
    }
    assert {reason.name for reason in Reason} <= given
