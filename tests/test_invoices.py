"""Invoices that a stranger recomputes from the exported ledger agree to the millisecond with everything that Fairlease tells."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from tests import invoices

from fairlease.ledger.state import events as ev
from fairlease.ledger.store.export import export_leases
from fairlease.ledger.store.protocol import LeaseQuery
from fairlease.model.amount import parse_gpu_hours
from fairlease.model.lease import Fund
from fairlease.model.record import key
from fairlease.report.invoices import invoice
from fairlease.report.views import budget_status, run_status
from fairlease.sim.random.play import RandomFilm

SEEDS = range(300, 308)
STEPS = 90


def film_of(seed: int) -> RandomFilm:
    film = RandomFilm(seed)
    film.open()
    for _ in range(STEPS):
        film.play()
    assert not film.auditor.violations
    return film


def exported(film: RandomFilm) -> list[invoices.Row]:
    out = io.BytesIO()
    export_leases(film.store.leases(LeaseQuery()), film.now, out)
    return invoices.read(out.getvalue().decode())


def without_nothing(owed: Counter[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
    return {whom: cost for whom, cost in owed.items() if cost}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stranger_comes_to_the_same_invoices(seed: int) -> None:
    film = film_of(seed)
    rows, now, state = exported(film), film.now, film.scheduler.state

    told: Counter[tuple[str, ...]] = Counter()
    for run in invoice(film.store.leases(LeaseQuery()), now)["runs"]:
        for payer in run["payers"]:
            whom = (
                key(run["name"]),
                run["owner"],
                key(payer["budget"]),
                payer["envelope"],
                payer["owner"],
                payer["class"],
            )
            told[whom] += payer["gpuMilliseconds"]
            assert parse_gpu_hours(payer["gpuHours"]) == payer["gpuMilliseconds"]
    assert without_nothing(told) == without_nothing(invoices.by_payer(rows, now))

    windows = {
        (str(budget), each.name): (each.start, each.end)
        for budget, spec in state.budgets.items()
        for each in spec.envelopes
    }
    owed = invoices.by_envelope(rows, now, windows)
    for budget in state.budgets:
        for used in budget_status(state, film.scheduler.engine.family, budget, now)["usage"]:
            assert parse_gpu_hours(used["consumedGPUHours"]) == owed[budget, used["name"]], (budget, used["name"])

    runs = invoices.by_run(rows, now)
    ended = [event for entry in film.store.entries() for event in entry.events if isinstance(event, ev.RunEnded)]
    for event in ended:
        work, spares, sponsors = runs.get(event.run, (0, 0, Counter()))
        bill = event.bill
        assert (bill.owned + bill.shared + bill.borrowed + bill.overdrawn, bill.spares) == (work, spares), event.run
        assert +Counter(bill.sponsors) == +sponsors, event.run
    for name, run in state.runs.items():
        work, _, sponsors = runs.get(name, (0, 0, Counter()))
        funding = run_status(run, now)["funding"]
        classes = ("owned", "shared", "borrowed", "overdrawn")
        assert sum(parse_gpu_hours(funding[each]["gpuHours"]) for each in classes) == work, name
        lent = Counter({each["owner"]: parse_gpu_hours(each["gpuHours"]) for each in funding["sponsors"]})
        assert +lent == +sponsors, name


def test_the_films_lend_grow_shrink_swap_and_try_again() -> None:
    """Invoices of films in which nothing changes would prove little."""
    wanted = {"Grow", "Swap", "Shrink", "borrowed", "again", "Borrowed", "Spare", "FundingSet", "CoverLost"}
    for seed in SEEDS:
        for event in (event for entry in film_of(seed).store.entries() for event in entry.events):
            wanted.discard(type(event).__name__)
            if isinstance(event, ev.LeasesOpened):
                wanted -= {event.reason.value, *(cell.role.value for cell in event.cells)}
                wanted -= {"borrowed"} if any(payer.fund is Fund.BORROWED for payer in event.payers) else set()
                wanted -= {"again"} if event.attempt > 1 else set()
            elif isinstance(event, ev.LeasesClosed):
                wanted.discard(event.reason.value)
        if not wanted:
            return
    assert not wanted
