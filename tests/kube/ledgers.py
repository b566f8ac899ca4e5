"""What the tests of the ledger as objects share: a connection for each, what lies on the server, entries to append."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.builders import History, a_node
from tests.kube.wires import connected
from tools.controlplane import Plane

from fairlease.kube.api.connection import Api
from fairlease.kube.api.resource import LEDGER_ENTRIES
from fairlease.kube.ledger.entry_codec import Filed
from fairlease.kube.ledger.journal import Journal
from fairlease.ledger.state import events as ev
from fairlease.scheduler import Decider


def run(server: Plane, act: Any) -> Any:  # noqa: ANN401 - each test's own
    """Run a test's coroutine with a connection."""

    async def with_connection() -> object:
        async with connected(server) as api:
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


async def snapshotted(journal: Journal, api: Api) -> None:
    """Keep a snapshot of what the entries on the server come to."""
    due = Decider(await Journal.open(api)).due_snapshot(force=True)
    assert due is not None
    await journal.save_snapshot(due)
