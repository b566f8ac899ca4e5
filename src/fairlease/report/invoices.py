"""Invoice: who pays for runs and what each has paid, summed from the ledger's leases in whole GPU-milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlease.model.amount import gpu_hours
from fairlease.model.lease import Lease, Role
from fairlease.model.record import Key, short

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlease.ledger.store.protocol import LeaseRow

View = dict[str, Any]
Spent = tuple[Lease, int, int]
"""A lease, the GPUs it holds now, and the GPU-milliseconds it has used."""


def invoice(rows: Iterable[LeaseRow], now: int, since: int | None = None, until: int | None = None) -> View:
    """Who paid what, by run and payer, and what each payer paid in all. Swaps, growth, earlier attempts: all are leases.

    Of a period (`since` to `until`, half-open) only what was used in it: periods that follow each other add up.
    """
    runs: dict[Key, list[Spent]] = {}
    for row in rows:
        lease = row.lease
        start = lease.start if since is None else max(lease.start, since)
        end = now if row.end is None else row.end
        used = max(0, (end if until is None else min(end, until)) - start)
        runs.setdefault(lease.run, []).append((lease, lease.gpus if row.end is None else 0, lease.gpus * used))
    return {
        "runs": [
            {
                "name": short(run),
                "owner": spent[0][0].owner,
                "payers": shares_of(spent),
                **_amount(sum(used for _, _, used in spent)),
            }
            for run, spent in runs.items()
        ],
        "owners": _owners([each for spent in runs.values() for each in spent]),
    }


def shares_of(spent: Iterable[Spent]) -> list[View]:
    """Sums per payer and class; spares are a class of their own."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for lease, gpus, gpu_ms in spent:
        payer = lease.payer
        _add(sums, (payer.budget, payer.envelope, payer.owner, _class(lease)), gpus, gpu_ms)
    return [
        {
            "budget": short(Key(key[0])),
            "envelope": key[1],
            "owner": key[2],
            "class": key[3],
            "gpus": gpus,
            **_amount(gpu_ms),
        }
        for key, (gpus, gpu_ms) in sums.items()
    ]


def _owners(spent: Iterable[Spent]) -> list[View]:
    """What each owner of money pays, by class: the owner itself, its family, its sponsors."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for lease, gpus, gpu_ms in spent:
        _add(sums, (lease.payer.owner, _class(lease)), gpus, gpu_ms)
    return [
        {"owner": owner, "class": kind, "gpus": gpus, **_amount(gpu_ms)}
        for (owner, kind), (gpus, gpu_ms) in sorted(sums.items())
    ]


def _add(sums: dict[tuple[str, ...], list[int]], key: tuple[str, ...], gpus: int, gpu_ms: int) -> None:
    total = sums.setdefault(key, [0, 0])
    total[0] += gpus
    total[1] += gpu_ms


def _class(lease: Lease) -> str:
    return "spare" if lease.role is Role.SPARE else lease.payer.fund.value


def _amount(gpu_ms: int) -> View:
    return {"gpuHours": gpu_hours(gpu_ms), "gpuMilliseconds": gpu_ms}
