"""A ledger's file whose bytes changed on the disk: what is read of it is right, or it is said that the file is damaged."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from bench.ledger import steps, world

from fairlease.ledger.audit.audit_file import audit_store
from fairlease.ledger.store.anchor import Anchor
from fairlease.ledger.store.protocol import Head, LeaseQuery
from fairlease.ledger.store.sqlite import SqliteStore
from fairlease.ledger.store.sqlite_file import CannotOpen, Damaged, LedgerLost
from fairlease.model.record import key
from fairlease.scheduler import Scheduler

RUNS = 400
PLACES = 60


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a snapshot, and entries after it."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    history = [world(), *steps(RUNS, apart=True)]
    with SqliteStore(path) as store:
        for seq, (at, events) in enumerate(history[: RUNS // 2]):
            store.append(seq, at, events)
        Scheduler(store).save_snapshot(force=True)
        for seq, (at, events) in enumerate(history[RUNS // 2 :], RUNS // 2):
            store.append(seq, at, events)
    return path


@pytest.mark.parametrize("seed", range(PLACES))
def test_wherever_a_file_is_damaged_nothing_but_that_is_said(whole: Path, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    path = tmp_path / "ledger.db"
    shutil.copy(whole, path)
    with path.open("r+b") as file:
        file.seek(dice.randrange(path.stat().st_size))
        file.write(b"\xff" * 64)
    with suppress(CannotOpen), SqliteStore(path, readonly=True) as store:
        audit_store(store)
        for question in (
            lambda: list(store.leases(LeaseQuery())),
            lambda: list(store.entries()),
            store.endings,
            lambda: [store.story(key(f"run-{number:07d}")) for number in range(RUNS)],
        ):
            with suppress(Damaged):
                question()
    with suppress(CannotOpen), SqliteStore(path) as store:
        Scheduler(store)
        store.append(store.head().seq, store.head().at, ())


def test_at_the_first_sign_of_damage_nothing_more_is_written(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    shutil.copy(whole, path)
    with SqliteStore(path) as store:
        head = store.head()
        store.damage = "somebody who reads the file found it damaged"
        with pytest.raises(Damaged, match="somebody"):
            store.append(head.seq, head.at, ())
        assert store.head() == head


def test_a_ledger_may_be_ahead_of_its_anchor_and_never_behind(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    shutil.copy(whole, path)
    anchor = Anchor(path)
    with SqliteStore(path) as store:
        head = store.head()
        before = next(store.rows(head.seq - 3))
    assert anchor.noted() == Head(seq=head.seq, hash=head.hash)
    anchor.note(Head(seq=before[0], hash=before[3].hex()))
    SqliteStore(path).close()
    assert anchor.noted() == Head(seq=head.seq, hash=head.hash)
    for noted, told in ((Head(seq=head.seq + 1, hash=head.hash), "older"), (Head(seq=head.seq), "not the ledger")):
        anchor.note(noted)
        with pytest.raises(LedgerLost, match=told):
            SqliteStore(path)
    anchor.path.write_bytes(b"\xff" * 86)
    with pytest.raises(LedgerLost, match="cannot be told"):
        SqliteStore(path)
    SqliteStore(path, restored=True).close()
    assert anchor.noted() == Head(seq=head.seq, hash=head.hash)
    anchor.close()
