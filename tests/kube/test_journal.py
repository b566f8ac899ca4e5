"""The ledger as objects of a real API server: appended by creating, raced for, cut short, damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.builders import EPOCH, History, a_node
from tests.kube.ledgers import a_history, appended, filed, nodes, run
from tests.kube.wires import cable_to, connected, ready
from tests.ledger.histories import RUNS, sound_histories
from tools.controlplane import Plane

from fairlease.kube.api.connection import Api
from fairlease.kube.api.resource import LEDGER_ENTRIES
from fairlease.kube.ledger.archive import read_past
from fairlease.kube.ledger.entry_codec import BODY_MAX, BrokenLedger, object_of, specs_of_entry
from fairlease.kube.ledger.journal import Journal
from fairlease.ledger.state import events as ev
from fairlease.ledger.store.chain import seal
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.protocol import Conflict, Entry, Head, LeaseQuery
from fairlease.scheduler import Decider, Scheduler


def test_the_ledger_on_the_server_is_the_ledger_in_memory(server: Plane) -> None:
    from hypothesis import HealthCheck, given, settings

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(sound_histories())
    def same(history: History) -> None:
        server.api().delete(LEDGER_ENTRIES.path())
        memory = history.into(MemoryStore())

        async def act(api: Api) -> tuple[Journal, MemoryStore]:
            await appended(await Journal.open(api), history)
            return await Journal.open(api), await read_past(api)

        journal, past = run(server, act)
        assert journal.head() == past.head() == memory.head()
        assert list(journal.entries()) == list(past.entries()) == list(memory.entries())
        assert list(past.rows()) == list(memory.rows())
        assert list(past.leases(LeaseQuery())) == list(memory.leases(LeaseQuery()))
        assert [past.story(key) for key in RUNS] == [memory.story(key) for key in RUNS]
        assert past.endings() == memory.endings()

    same()


def test_an_append_behind_another_head_is_a_conflict_and_writes_nothing(server: Plane) -> None:
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

    assert run(server, act) == 2


def test_of_two_who_append_at_once_exactly_one_wins(server: Plane) -> None:
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

    run(server, act)


def test_two_who_write_long_entries_at_once_do_not_mix_them(server: Plane) -> None:
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

    run(server, act)


def test_a_long_entry_comes_in_parts_and_is_whole_again(server: Plane) -> None:
    awkward = tuple(ev.NodeSet(node=a_node(f"n{number}", labels={"a": '<&>"\\ü€𝄞' * 40})) for number in range(2_000))

    async def act(api: Api) -> None:
        journal = await Journal.open(api)
        entry = await journal.append(0, EPOCH, awkward)
        objects = await filed(api)
        assert len(objects) > 5
        assert all(len(each.spec.body.encode()) <= BODY_MAX for each in objects.values())
        (again,) = (await Journal.open(api)).entries()
        assert again == entry

    run(server, act)


def test_an_append_whose_answer_is_lost_is_made_once(server: Plane) -> None:
    async def act(api: Api) -> None:
        async with cable_to(server.port) as cable, connected(server, cable.port, timeout_s=1.0) as far:
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

    run(server, act)


def test_what_another_wrote_while_our_answer_was_lost_is_a_conflict(server: Plane) -> None:
    async def act(api: Api) -> None:
        async with cable_to(server.port) as cable, connected(server, cable.port, timeout_s=1.0) as far:
            journal, other = await Journal.open(far), await Journal.open(api)
            cable.mute = True
            appending = asyncio.create_task(journal.append(0, EPOCH, nodes(1)))
            await asyncio.sleep(0.3)
            await other.append(0, EPOCH, nodes(1))
            cable.mend()
            with pytest.raises(Conflict):
                await appending

    run(server, act)


def kill_server(server: Plane) -> None:
    server.apiserver.kill()
    server.apiserver.start()


def kill_etcd(server: Plane) -> None:
    server.etcd.kill()
    server.etcd.start()


@pytest.mark.parametrize(("kill", "pauses"), [(kill_server, (0.5, 0.83)), (kill_etcd, (0.5, 0.71, 0.63))])
def test_what_is_killed_in_the_middle_of_appends_has_each_once(
    server: Plane, kill: Callable[[Plane], None], pauses: tuple[float, ...]
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
            kill(server)
            await ready(server)
            await until_longer(journal, journal.head().seq)
        done.set()
        await asyncio.wait_for(appending, 60.0)
        reader = await Journal.open(api)
        assert reader.head() == journal.head()
        assert list(reader.entries()) == said

    run(server, act)


async def until_longer(journal: Journal, seq: int) -> None:
    for _ in range(600):
        if journal.head().seq > seq:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"no append since entry {seq}")


def test_a_ledger_with_a_hole_is_not_decided_upon(server: Plane) -> None:
    async def act(api: Api) -> None:
        await appended(await Journal.open(api), a_history())
        await api.delete(LEDGER_ENTRIES, "e-000000000002")
        with pytest.raises(BrokenLedger, match="nothing was decided"):
            await Journal.open(api)

    run(server, act)


def test_an_entry_that_lost_a_part_is_not_decided_upon(server: Plane) -> None:
    async def act(api: Api) -> None:
        await (await Journal.open(api)).append(0, EPOCH, nodes(4_000))
        part = next(name for name, each in (await filed(api)).items() if each.spec.part)
        await api.delete(LEDGER_ENTRIES, part)
        with pytest.raises(BrokenLedger, match="parts, of which"):
            await Journal.open(api)

    run(server, act)


def test_parts_of_an_entry_that_is_being_written_are_left_alone(server: Plane) -> None:
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

    run(server, act)


def test_a_scheduler_in_memory_decides_as_one_on_the_server(server: Plane) -> None:
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

    assert run(server, act) == local.head
