"""The outbox by itself: what it keeps, what it forgets, and what it never tells twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlease.model.record import key
from fairlease.report.notices import Notice, NoticeKind
from fairlease.runtime.notify import outbox as ob
from fairlease.runtime.notify.outbox import Address, Outbox


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    box = Outbox(tmp_path / "notices.db")
    yield box
    box.close()


def notice(name: str, kind: NoticeKind = NoticeKind.RUN_STARTED, at: int = 0) -> Notice:
    return Notice(key=f"{kind.value}/{name}", kind=kind, at=at, text=name, run=key(name))


def test_a_key_is_kept_once_whoever_raises_it_again(outbox: Outbox) -> None:
    assert outbox.put([(notice("a"), [Address("webhook")])], 0, mark=7) == [notice("a")]
    assert outbox.put([(notice("a"), [Address("webhook")])], 5) == []
    assert outbox.mark() == 7
    (delivery,) = outbox.pending("webhook", 10)
    outbox.settle(delivery, "delivered")
    assert outbox.pending("webhook", 10) == []
    assert outbox.last(10) == [(notice("a"), [("webhook", "", "delivered")])]


def test_the_past_of_one_run_is_found_by_its_whole_name(outbox: Outbox) -> None:
    outbox.put([(notice(name), []) for name in ("a", "ab", "b", "a")], 0)
    assert [each.text for each, _ in outbox.last(10, key("a"))] == ["a"]
    assert [each.text for each, _ in outbox.last(2)] == ["b", "ab"]


def test_what_was_given_up_is_counted_for_as_long_as_asked(outbox: Outbox) -> None:
    outbox.put([(notice(name, at=at), [Address("webhook")]) for name, at in (("a", 5), ("b", 50), ("c", 60))], 0)
    first, second, third = outbox.pending("webhook", 10)
    outbox.settle(first, "failed", "refused")
    outbox.settle(second, "failed", "refused again")
    assert outbox.sums(since=10) == (1, 1, "refused again")
    outbox.postpone(third, 99, "not now")
    assert outbox.sums(since=0) == (1, 2, "not now")


def test_what_went_wrong_last_is_what_was_given_up_last_whatever_was_raised_first(outbox: Outbox) -> None:
    outbox.put([(notice(name), [Address("command")]) for name in "abc"], 0)
    first, second, third = outbox.pending("command", 10)
    outbox.settle(second, "failed", "second", at=20)
    outbox.settle(first, "failed", "first", at=30)
    outbox.settle(third, "failed", "third", at=10)
    assert outbox.sums(since=0) == (0, 3, "first")


def test_old_notices_go_but_not_those_that_would_be_told_again(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ob, "KEPT_MAX", 10)
    monkeypatch.setattr(ob, "PRUNE_EVERY", 50)
    outbox.put([(notice("low", NoticeKind.HOURS_LOW), [])], 0)
    outbox.put([(notice(f"run-{number}"), [Address("webhook")]) for number in range(49)], 0)
    assert outbox.put([(notice("low", NoticeKind.HOURS_LOW), [])], 0) == []
    assert len(outbox.last(100)) == 11
    assert len(outbox.pending("webhook", 100)) == 10
