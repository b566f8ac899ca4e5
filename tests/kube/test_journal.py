"""The ledger as objects of a real API server: appended by creating, raced for, cut short, archived, audited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders import EPOCH, History, a_node, cell
from tests.kube.conftest import MakePlane
from tests.kube.wires import cable_to, connected, ready
from tests.ledger.histories import RUNS, sound_histories
from tools.controlplane import Plane

from fairlease.kube.archive import Archive
from fairlease.kube.connection import Api
from fairlease.kube.history import HistoryMissing, read_past, read_rows
from fairlease.kube.journal import Journal
from fairlease.kube.resource import LEDGER_ENTRIES
from fairlease.kube.shelf import BODY_MAX, BrokenLedger, Filed, object_of, specs_of_entry
from fairlease.ledger import event as ev
from fairlease.ledger import snapshot as snapshots
from fairlease.ledger.audit import scan
from fairlease.ledger.chain import seal
from fairlease.ledger.memory import MemoryStore
from fairlease.ledger.state import State
from fairlease.ledger.store import Conflict, Entry, Head, LeaseQuery, Snapshot
from fairlease.model.record import key
from fairlease.reason import Reason
from fairlease.scheduler import Decider, Scheduler, fold

pytestmark = pytest.mark.xdist_group("journal")

CRDS = Path(__file__).resolve().parents[2] / "config" / "crd"


@pytest.fixture(scope="module")
def server(make_plane: MakePlane) -> Iterator[Plane]:
    """A server of our own: there is one ledger in a cluster."""
    plane = make_plane()
    plane.kubectl("apply", "--server-side", "-k", str(CRDS))
    plane.kubectl("wait", "--for=condition=Established", "crd/ledgerentries.rq.davidlangworthy.io", "--timeout=30s")
    yield plane
    plane.stop()


@pytest.fixture
def plane(server: Plane) -> Plane:
    """The same with an empty ledger."""
    emptied = server.api().delete(LEDGER_ENTRIES.path())
    assert emptied.ok, emptied.message
    return server


def run(plane: Plane, act: Any) -> Any:  # noqa: ANN401 - each test's own
    """Run a test's coroutine with a connection."""

    async def with_connection() -> object:
        async with connected(plane) as api:
            return await act(api)

    return asyncio.run(with_connection())


async def filed(api: Api) -> dict[str, Filed]:
    return {each.metadata.name: each for each in (await api.list(LEDGER_ENTRIES, into=Filed)).items}


async def appended(journal: Journal, history: History) -> None:
    for at, events in history.steps:
        await journal.append(journal.head().seq, at, events)


def a_history() -> History:
    return History().world().submits("train").after(5).submits("later").after(5).ends("later")


def nodes(count: int) -> tuple[ev.AnyEvent, ...]:
    return tuple(ev.NodeSet(node=a_node(f"node-{number}-ü")) for number in range(count))


def a_snapshot(head: Head, more: bytes, **said: object) -> Snapshot:
    """A snapshot that can be read, as long as somebody likes; `said` makes it one of another version."""
    frozen = msgspec.msgpack.decode(snapshots.freeze(State()))
    body = msgspec.msgpack.encode({**frozen, **said, "more": more})
    return Snapshot(seq=head.seq, hash=head.hash, at=head.at, digest=sha256(body).hexdigest(), body=body)


def test_the_ledger_on_the_server_is_the_ledger_in_memory(plane: Plane) -> None:
    from hypothesis import HealthCheck, given, settings

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(sound_histories())
    def same(history: History) -> None:
        plane.api().delete(LEDGER_ENTRIES.path())
        memory = history.into(MemoryStore())

        async def act(api: Api) -> tuple[Journal, MemoryStore]:
            await appended(await Journal.open(api), history)
            return await Journal.open(api), await read_past(api)

        journal, past = run(plane, act)
        assert journal.head() == past.head() == memory.head()
        assert list(journal.entries()) == list(past.entries()) == list(memory.entries())
        assert list(past.rows()) == list(memory.rows())
        assert list(past.leases(LeaseQuery())) == list(memory.leases(LeaseQuery()))
        assert [past.story(key) for key in RUNS] == [memory.story(key) for key in RUNS]
        assert past.endings() == memory.endings()

    same()


def test_an_append_behind_another_head_is_a_conflict_and_writes_nothing(plane: Plane) -> None:
    async def act(api: Api) -> int:
        journal = await Journal.open(api)
        await journal.append(0, EPOCH, ())
        before = journal.head()
        for expected in (0, 2):
            with pytest.raises(Conflict):
                await journal.append(expected, EPOCH + 1, ())
        with pytest.raises(ValueError, match="before its predecessor"):
            await journal.append(1, EPOCH - 1, ())
        assert journal.head() == before
        assert (await journal.append(1, EPOCH + 1, ())).seq == 2
        return len(await filed(api))

    assert run(plane, act) == 2


def test_of_two_who_append_at_once_exactly_one_wins(plane: Plane) -> None:
    async def act(api: Api) -> None:
        for round_ in range(20):
            first, second = await asyncio.gather(Journal.open(api), Journal.open(api))
            results = await asyncio.gather(
                *(each.append(round_, EPOCH + round_, nodes(2)) for each in (first, second)), return_exceptions=True
            )
            assert sorted(type(each).__name__ for each in results) == ["Conflict", "Entry"], results
            loser = first if isinstance(results[0], Conflict) else second
            with pytest.raises(Conflict):  # even where it says the very same thing: it is not the one who decides
                await loser.append(round_, EPOCH + round_, nodes(2))
        assert sorted(await filed(api)) == [f"e-{number:012d}" for number in range(1, 21)]

    run(plane, act)


def test_two_who_write_long_entries_at_once_do_not_mix_them(plane: Plane) -> None:
    async def act(api: Api) -> None:
        first, second = await asyncio.gather(Journal.open(api), Journal.open(api))
        results = await asyncio.gather(
            first.append(0, EPOCH, nodes(4_000)), second.append(0, EPOCH + 1, nodes(5_000)), return_exceptions=True
        )
        assert sorted(type(each).__name__ for each in results) == ["Conflict", "Entry"], results
        reader = await Journal.open(api)
        (entry,) = reader.entries()
        assert len(entry.events) == (5_000 if isinstance(results[0], Conflict) else 4_000)
        held = {each.spec.hash for each in (await filed(api)).values()}
        assert len(held) == 2, "the loser's parts are there, and mean nothing"
        await reader.tidy()
        assert {each.spec.hash for each in (await filed(api)).values()} == {entry.hash}

    run(plane, act)


def test_a_long_entry_comes_in_parts_and_is_whole_again(plane: Plane) -> None:
    awkward = tuple(ev.NodeSet(node=a_node(f"n{number}", labels={"a": '<&>"\\ü€𝄞' * 40})) for number in range(2_000))

    async def act(api: Api) -> None:
        journal = await Journal.open(api)
        entry = await journal.append(0, EPOCH, awkward)
        objects = await filed(api)
        assert len(objects) > 5
        assert all(len(each.spec.body.encode()) <= BODY_MAX for each in objects.values())
        (again,) = (await Journal.open(api)).entries()
        assert again == entry

    run(plane, act)


def test_an_append_whose_answer_is_lost_is_made_once(plane: Plane) -> None:
    async def act(api: Api) -> None:
        async with cable_to(plane.port) as cable, connected(plane, cable.port, timeout_s=1.0) as far:
            journal = await Journal.open(far)
            await journal.append(0, EPOCH, nodes(1))
            cable.deaf = True
            appending = asyncio.create_task(journal.append(1, EPOCH + 1, nodes(2)))
            for _ in range(100):
                if len(await filed(api)) == 2:
                    break
                await asyncio.sleep(0.05)
            assert len(await filed(api)) == 2, "the server took it, and nobody knows"
            assert not appending.done()
            cable.mend()
            assert (await appending).seq == 2
            assert (await journal.append(2, EPOCH + 2, nodes(3))).seq == 3
        assert len(list((await Journal.open(api)).entries())) == 3

    run(plane, act)


def test_what_another_wrote_while_our_answer_was_lost_is_a_conflict(plane: Plane) -> None:
    async def act(api: Api) -> None:
        async with cable_to(plane.port) as cable, connected(plane, cable.port, timeout_s=1.0) as far:
            journal, other = await Journal.open(far), await Journal.open(api)
            cable.mute = True
            appending = asyncio.create_task(journal.append(0, EPOCH, nodes(1)))
            await asyncio.sleep(0.3)
            await other.append(0, EPOCH, nodes(1))
            cable.mend()
            with pytest.raises(Conflict):
                await appending

    run(plane, act)


def kill_server(plane: Plane) -> None:
    plane.apiserver.kill()
    plane.apiserver.start()


def kill_etcd(plane: Plane) -> None:
    plane.etcd.kill()
    plane.etcd.start()


@pytest.mark.parametrize(("kill", "pauses"), [(kill_server, (0.5, 0.83)), (kill_etcd, (0.5, 0.71, 0.63))])
def test_what_is_killed_in_the_middle_of_appends_has_each_once(
    plane: Plane, kill: Callable[[Plane], None], pauses: tuple[float, ...]
) -> None:
    async def act(api: Api) -> None:
        journal = await Journal.open(api)
        done = asyncio.Event()
        said: list[Entry] = []

        async def append() -> None:
            while not done.is_set():
                number = len(said)
                said.append(await journal.append(number, EPOCH + number, nodes(1 + 1_500 * (number % 7 == 0))))

        appending = asyncio.create_task(append())
        for pause_s in pauses:
            await asyncio.sleep(pause_s)
            kill(plane)
            await ready(plane)
            await until_longer(journal, journal.head().seq)
        done.set()
        await asyncio.wait_for(appending, 60.0)
        reader = await Journal.open(api)
        assert reader.head() == journal.head()
        assert list(reader.entries()) == said

    run(plane, act)


async def until_longer(journal: Journal, seq: int) -> None:
    for _ in range(600):
        if journal.head().seq > seq:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"no append since entry {seq}")


def test_a_start_reads_the_snapshot_and_what_came_later(plane: Plane) -> None:
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

    run(plane, act)


def test_the_latest_snapshots_are_found_and_only_two_are_kept(plane: Plane) -> None:
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

    run(plane, act)


def test_a_snapshot_that_is_damaged_is_passed_over(plane: Plane) -> None:
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

    run(plane, act)


def test_a_snapshot_of_another_ledger_is_not_kept(plane: Plane) -> None:
    async def act(api: Api) -> None:
        journal = await Journal.open(api)
        await journal.append(0, EPOCH, ())
        for strange in (Head(seq=1, hash="f" * 64, at=EPOCH), Head(seq=9, hash=journal.head().hash, at=EPOCH)):
            with pytest.raises(ValueError, match="does not belong"):
                await journal.save_snapshot(a_snapshot(strange, b"state"))

    run(plane, act)


async def lived(api: Api, archive: Archive | None) -> Journal:
    """A ledger with two snapshots and entries before, between and behind them."""
    journal = await Journal.open(api, archive=archive)
    await appended(journal, a_history())
    for _ in range(2):
        await snapshotted(journal, api)
        head = journal.head()
        await journal.append(head.seq, head.at + 1, nodes(2))
    return journal


async def snapshotted(journal: Journal, api: Api) -> None:
    """Keep a snapshot of what the entries on the server come to."""
    due = Decider(await Journal.open(api)).due_snapshot(force=True)
    assert due is not None
    await journal.save_snapshot(due)


def test_old_entries_are_archived_and_only_then_removed(plane: Plane, tmp_path: Path) -> None:
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

    run(plane, act)


def test_without_the_archive_at_hand_what_lives_is_still_known(plane: Plane, tmp_path: Path) -> None:
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

    run(plane, act)


def closing(run: str) -> tuple[ev.AnyEvent, ...]:
    return (ev.LeasesClosed(run=key(run), names=(), reason=Reason.Canceled),)


def test_without_an_archive_nothing_is_removed(plane: Plane) -> None:
    async def act(api: Api) -> None:
        journal = await lived(api, None)
        assert (await journal.tidy()) == (0, 0)
        assert len(await read_rows(api)) == journal.head().seq

    run(plane, act)


def test_who_dies_between_archive_and_removal_harms_nothing(plane: Plane, tmp_path: Path) -> None:
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

    run(plane, act)


def tamper(folder: Path) -> None:
    (file,) = folder.glob("*.jsonl")
    file.write_text(file.read_text().replace("train", "brain", 1))


def test_an_archive_that_was_changed_is_found_out(plane: Plane, tmp_path: Path) -> None:
    async def act(api: Api) -> None:
        archive = Archive(tmp_path)
        journal = await lived(api, archive)
        await journal.tidy()
        tamper(tmp_path)
        report = scan(await read_rows(api, archive))
        assert not report.ok
        assert not report.checks["chain"]

    run(plane, act)


def test_a_ledger_with_a_hole_is_not_decided_upon(plane: Plane) -> None:
    async def act(api: Api) -> None:
        await appended(await Journal.open(api), a_history())
        await api.delete(LEDGER_ENTRIES, "e-000000000002")
        with pytest.raises(BrokenLedger, match="nothing was decided"):
            await Journal.open(api)

    run(plane, act)


def test_an_entry_that_lost_a_part_is_not_decided_upon(plane: Plane) -> None:
    async def act(api: Api) -> None:
        await (await Journal.open(api)).append(0, EPOCH, nodes(4_000))
        part = next(name for name, each in (await filed(api)).items() if each.spec.part)
        await api.delete(LEDGER_ENTRIES, part)
        with pytest.raises(BrokenLedger, match="parts, of which"):
            await Journal.open(api)

    run(plane, act)


def test_parts_of_an_entry_that_is_being_written_are_left_alone(plane: Plane) -> None:
    async def act(api: Api) -> None:
        journal = await Journal.open(api)
        sealed = seal(journal.head(), EPOCH, nodes(4_000))
        head, *parts = specs_of_entry(sealed, journal.writer)
        for each in parts:
            await api.create(LEDGER_ENTRIES, object_of(each))
        await journal.tidy()
        await api.create(LEDGER_ENTRIES, object_of(head))
        (entry,) = (await Journal.open(api)).entries()
        assert entry == sealed.entry

    run(plane, act)


def test_a_scheduler_in_memory_decides_as_one_on_the_server(plane: Plane) -> None:
    """The two phases of a decision are the same tick."""
    from fairlease.engine import command as cmd

    commands: list[cmd.AnyCommand] = [cmd.SetNode(node=a_node(f"n{number}")) for number in range(4)]
    local = Scheduler(MemoryStore())
    local.tick(EPOCH, *commands)

    async def act(api: Api) -> Head:
        journal = await Journal.open(api)
        decider = Decider(journal)
        dropped = decider.propose(EPOCH, *commands[:1])
        decider.undo(dropped)
        proposal = decider.propose(EPOCH, *commands)
        entry = await journal.append(decider.head.seq, proposal.at, proposal.decision.events)
        assert decider.keep(proposal, entry).entry == entry
        return decider.head

    assert run(plane, act) == local.head
