"""Long work beside the daemon's loop: an answer has a bound, and is what the one exporter writes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from tests.builders import EPOCH, History, cell

from fairlease.ledger.store.export import export
from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.local.daemon import children
from fairlease.local.socket.server import ServerRefusal
from fairlease.model.amount import HOUR


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    with SqliteStore(path) as store:
        History().world().submits("train").opens("train", cell("n1", 0, 1), cell("n2", 0)).after(0).into(store)
    return path


@pytest.mark.parametrize(("what", "lines"), [("leases", 2), ("charges", 1)])
def test_a_daemon_answers_what_the_file_gives(what: str, lines: int, ledger: Path) -> None:
    answer = children.export_answer(ledger, what, LeaseQuery(), EPOCH + HOUR)
    by_file = io.BytesIO()
    with SqliteStore(ledger, readonly=True) as store:
        assert export(what, store.leases(LeaseQuery()), EPOCH + HOUR, by_file) == lines
    assert answer == {"csv": by_file.getvalue().decode(), "rows": lines}


def test_an_answer_that_is_too_large_is_refused(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "EXPORT_BYTES_MAX", 300)
    with pytest.raises(ServerRefusal) as caught:
        children.export_answer(ledger, "leases", LeaseQuery(), EPOCH + HOUR)
    assert caught.value.error.reason == "TooLarge"
    assert "--db" in caught.value.error.message
