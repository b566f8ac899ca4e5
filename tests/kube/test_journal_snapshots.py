"""Snapshots of the ledger on an API server, and its archive: where a start begins, what is kept, what is removed and when."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from tests.builders import EPOCH, History, cell
from tests.kube.ledgers import a_history, appended, filed, nodes, run, snapshotted
from tools.controlplane import Plane

from fairlease.kube.api.connection import Api
from fairlease.kube.api.resource import LEDGER_ENTRIES
from fairlease.kube.ledger.archive import Archive, HistoryMissing, read_past, read_rows
from fairlease.kube.ledger.journal import Journal
from fairlease.ledger.audit.audit import scan
from fairlease.ledger.state import events as ev
from fairlease.ledger.state.state import State
from fairlease.ledger.store import snapshot as snapshots
from fairlease.ledger.store.protocol import Head, LeaseQuery, Snapshot
from fairlease.model.record import key
from fairlease.reason import Reason
from fairlease.scheduler import Decider, fold


def a_snapshot(head: Head, more: bytes, **said: object) -> Snapshot:
    """A snapshot that can be read, as long as somebody likes; `said` makes it one of another version."""
    frozen = msgspec.msgpack.decode(snapshots.freeze(State()))
    body = msgspec.msgpack.encode({**frozen, **said, "more": more})
    return Snapshot(seq=head.seq, hash=head.hash, at=head.at, digest=sha256(body).hexdigest(), body=body)


def test_a_start_reads_the_snapshot_and_what_came_later(server: Plane) -> None:
    async def act(api: Api) -> None:
        journal = await Journal.open(api)
        await appended(journal, a_history())
        with pytest.raises(ValueError, match="until it appends"):
            list(journal.entries())
        assert list(journal.entries(journal.head().seq)) == []
        journal = await Journal.open(api)
        decider = Decider(journal)
        due = decider.due_snapshot(force=True)
        assert due is not None
        await journal.save_snapshot(due)
        decider.saved(due)
        assert decider.due_snapshot(force=True) is None
        kept = journal.head()
        await journal.append(kept.seq, kept.at + 1, nodes(3))
        again = await Journal.open(api)
        assert [entry.seq for entry in again.entries(kept.seq)] == [kept.seq + 1]
        state, begun_from = fold(again)
        assert begun_from == kept.seq
        whole, _ = fold(await read_past(api))
        assert snapshots.freeze(state) == snapshots.freeze(whole)

    run(server, act)


def test_the_latest_snapshots_are_found_and_only_two_are_kept(server: Plane) -> None:
    async def act(api: Api) -> None:
        journal = await Journal.open(api)
        assert journal.latest_snapshot() is None
        for number in range(4):
            await journal.append(number, EPOCH + number, ())
            snapshot = a_snapshot(journal.head(), b"state %d" % number * 400_000 if number == 3 else b"state")
            await journal.save_snapshot(snapshot)
            assert journal.latest_snapshot() == snapshot
            assert (await Journal.open(api)).latest_snapshot() == snapshot
        await journal.tidy()
        names = [name for name in await filed(api) if name.startswith("s-")]
        assert {name[:14] for name in names} == {"s-000000000003", "s-000000000004"}

    run(server, act)


def test_a_snapshot_that_is_damaged_is_passed_over(server: Plane) -> None:
    async def act(api: Api) -> None:
        journal = await Journal.open(api)
        for number in range(2):
            await journal.append(number, EPOCH + number, ())
            await journal.save_snapshot(a_snapshot(journal.head(), bytes(range(256)) * 4_000 + b"%d" % number))
        await api.delete(LEDGER_ENTRIES, "s-000000000002")
        spec = (await filed(api))["s-000000000001"].spec
        bad = {"seq": 2, "at": EPOCH + 1, "hash": journal.head().hash, "role": "Snapshot", "digest": spec.digest,
               "body": "AAAA"}  # fmt: skip
        base = {"apiVersion": LEDGER_ENTRIES.api_version, "kind": "LedgerEntry"}
        await api.create(LEDGER_ENTRIES, {**base, "metadata": {"name": "s-000000000002"}, "spec": bad})
        found = (await Journal.open(api)).latest_snapshot()
        assert found is not None
        assert found.seq == 1

    run(server, act)


def test_a_snapshot_of_another_ledger_is_not_kept(server: Plane) -> None:
    async def act(api: Api) -> None:
        journal = await Journal.open(api)
        await journal.append(0, EPOCH, ())
        for strange in (Head(seq=1, hash="f" * 64, at=EPOCH), Head(seq=9, hash=journal.head().hash, at=EPOCH)):
            with pytest.raises(ValueError, match="does not belong"):
                await journal.save_snapshot(a_snapshot(strange, b"state"))

    run(server, act)


async def lived(api: Api, archive: Archive | None) -> Journal:
    """A ledger with two snapshots and entries before, between and behind them."""
    journal = await Journal.open(api, archive=archive)
    await appended(journal, a_history())
    for _ in range(2):
        await snapshotted(journal, api)
        head = journal.head()
        await journal.append(head.seq, head.at + 1, nodes(2))
    return journal


def test_old_entries_are_archived_and_only_then_removed(server: Plane, tmp_path: Path) -> None:
    async def act(api: Api) -> None:
        archive = Archive(tmp_path / "archive")
        journal = await lived(api, archive)
        before = await read_rows(api)
        older, newer = sorted(journal._snapshots)
        done = await journal.tidy()
        assert (done.archived, done.removed) == (older - 1, older - 1)
        entries = sorted(each.spec.seq for name, each in (await filed(api)).items() if name.startswith("e-"))
        assert entries == list(range(older, journal.head().seq + 1))
        assert await read_rows(api, archive) == before
        assert scan(await read_rows(api, archive)).ok
        with pytest.raises(HistoryMissing, match=f"entries 1 to {older - 1} were archived"):
            await read_rows(api)
        again = await Journal.open(api)
        assert again.head() == journal.head()
        assert [entry.seq for entry in again.entries(newer)] == list(range(newer + 1, again.head().seq + 1))
        assert (await journal.tidy()) == (0, 0)

    run(server, act)


def test_without_the_archive_at_hand_what_lives_is_still_known(server: Plane, tmp_path: Path) -> None:
    history = History().world().submits("train").opens("train", cell("n1", 0, 1)).submits("short").after(5)
    history.opens("short", cell("n2", 0)).after(5).closes("short").ends("short").after(5)

    async def act(api: Api) -> None:
        archive = Archive(tmp_path)
        journal = await Journal.open(api, archive=archive)
        await appended(journal, history)
        for _ in range(2):
            await snapshotted(journal, api)
            head = journal.head()
            await journal.append(head.seq, head.at + 1, nodes(2))
        head = journal.head()
        await journal.append(head.seq, head.at + 1, closing("train"))
        assert (await journal.tidy()).archived > 0
        whole, late = await read_past(api, archive), await read_past(api)
        assert (whole.first, late.first) == (0, min(journal._snapshots))
        assert late.head() == whole.head()
        train = LeaseQuery(run=key("train"))
        assert list(late.leases(train)) == list(whole.leases(train))
        assert [type(each.event) for each in late.story(key("train"))] == [ev.RunSubmitted, ev.LeasesClosed]
        assert late.story(key("train"))[0].at == whole.story(key("train"))[0].at
        with pytest.raises(ValueError, match="are not here"):
            list(late.rows())
        assert snapshots.freeze(fold(late)[0]) == snapshots.freeze(fold(whole)[0])

    run(server, act)


def closing(run: str) -> tuple[ev.AnyEvent, ...]:
    return (ev.LeasesClosed(run=key(run), names=(), reason=Reason.Canceled),)


def test_without_an_archive_nothing_is_removed(server: Plane) -> None:
    async def act(api: Api) -> None:
        journal = await lived(api, None)
        assert (await journal.tidy()) == (0, 0)
        assert len(await read_rows(api)) == journal.head().seq

    run(server, act)


def test_who_dies_between_archive_and_removal_harms_nothing(server: Plane, tmp_path: Path) -> None:
    async def act(api: Api) -> None:
        archive = Archive(tmp_path)
        journal = await lived(api, archive)
        before = await read_rows(api)
        older = min(journal._snapshots)
        archive.add(before[: older - 1])
        await api.delete(LEDGER_ENTRIES, "e-000000000002")  # it got this far
        assert await read_rows(api, archive) == before
        done = await (await Journal.open(api, archive=archive)).tidy()
        assert (done.archived, done.removed) == (0, older - 2)
        assert await read_rows(api, archive) == before

    run(server, act)


def tamper(folder: Path) -> None:
    (file,) = folder.glob("*.jsonl")
    file.write_text(file.read_text().replace("train", "brain", 1))


def test_an_archive_that_was_changed_is_found_out(server: Plane, tmp_path: Path) -> None:
    async def act(api: Api) -> None:
        archive = Archive(tmp_path)
        journal = await lived(api, archive)
        await journal.tidy()
        tamper(tmp_path)
        report = scan(await read_rows(api, archive))
        assert not report.ok
        assert not report.checks["chain"]

    run(server, act)
