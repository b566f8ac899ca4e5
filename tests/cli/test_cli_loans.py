"""Money between owners, with the real daemon: sponsors, both sides of a loan, invoices, and what is counted of it."""

from __future__ import annotations

import json
import re
import socket
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import invoices
from tests.cli.machine import Machine

BUDGET = """---
apiVersion: rq.davidlangworthy.io/v1
kind: Budget
metadata: {{name: {name}}}
spec:
  owner: {owner}
  envelopes: [{{name: main, flavor: H100, selector: {{region: "*"}}, concurrency: {gpus}, lending: {lending}{more}}}]
"""
RUN = """apiVersion: rq.davidlangworthy.io/v1
kind: Run
metadata: {{name: {name}}}
spec:
  owner: {owner}
  resources: {{gpuType: H100, totalGPUs: {gpus}}}
  command: [sh, -c, "sleep 300"]
"""
CONFIG = "growCooldown: 200ms\ngrace: 200ms\nflavor: H100\nnodes: [{name: n0, gpus: 8}, {name: n1, gpus: 8}]\n"


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        user = Machine(Path(folder) / "home")
        config = Path(folder) / "fairlease.yaml"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config.write_text(f"{CONFIG}metricsPort: {port}\n")
        user.env["FAIRLEASE_CONFIG"] = str(config)
        up(user)
        try:
            lender = BUDGET.format(name="lab", owner="lab", gpus=8, lending="{allow: true, maxConcurrency: 8}", more="")
            own = BUDGET.format(name="own", owner="org:a", gpus=2, lending="{}", more="")
            user.do("budgets", "apply", "-f", "-", stdin=lender + own)
            yield user
        finally:
            user.do("down", "--end")


def up(machine: Machine) -> None:
    machine.do("up", "--config", machine.env["FAIRLEASE_CONFIG"])


def submit(machine: Machine, name: str, gpus: int, owner: str = "org:a", more: str = "") -> str:
    return machine.do("submit", "-f", "-", stdin=RUN.format(name=name, owner=owner, gpus=gpus) + more)


def phase(machine: Machine, name: str) -> str:
    return str(machine.ask("show", name)["status"]["phase"])


def measured(machine: Machine) -> dict[str, float]:
    url = machine.ask("status")["metrics"]
    text = urllib.request.urlopen(url).read().decode()  # noqa: S310 - our own address
    return {name: float(value) for name, value in re.findall(r"^fairlease_(\S+) (\S+)$", text, re.MULTILINE)}


def test_a_sponsor_that_is_added_starts_what_waits(machine: Machine) -> None:
    assert "ConcurrencyCapExceeded" in submit(machine, "train", 4)
    assert machine.do("sponsors", "add", "train", "nobody") == "run/train borrows from nobody\n"
    assert phase(machine, "train") == "Pending"
    told = machine.do("sponsors", "add", "train", "lab", "--max", "2")
    assert told == "run/train borrows from nobody, lab, 2 GPUs at most\n"
    machine.runs("train")
    assert machine.do("sponsors", "add", "train", "lab").endswith("(unchanged)\n")
    rows = {line.split()[0]: line.split() for line in machine.do("sponsors", "list", "train").splitlines()}
    assert rows["lab"][1] == "2"

    assert machine.do("sponsors", "remove", "train", "lab").startswith("run/train borrows from nobody")
    status = machine.ask("show", "train")
    assert status["spec"]["funding"] == {"allowBorrow": True, "maxBorrowGPUs": 2, "sponsors": ["nobody"]}
    assert status["status"]["funding"]["borrowed"]["gpus"] == 2, "what was lent stays lent"
    assert "removed: lends nothing more" in machine.do("sponsors", "list", "train")
    story = [line["message"] for line in machine.ask("explain", "train")["story"] if line["reason"] == "FundingSet"]
    assert story[-1] == "may borrow from nobody, 2 GPUs at most"
    assert machine.ask("audit")["ok"] is True
    machine.do("cancel", "train")
    sponsors = {each["owner"]: each for each in machine.ask("sponsors", "list", "train")["sponsors"]}
    assert sponsors["lab"]["gpus"] == 0
    assert (
        sponsors["lab"]["gpuHours"] == machine.ask("who-pays", "--sponsor", "lab", "--all")["owners"][0]["gpuHours"] > 0
    )


def test_a_wrong_sponsor_is_refused_with_what_would_be_right(machine: Machine) -> None:
    submit(machine, "train", 4)
    assert "is no sponsor of" in machine.do("sponsors", "remove", "train", "lab", code=2)
    assert "expected an owner" in machine.do("sponsors", "add", "train", "not an owner", code=2)
    assert "there is no run trian; did you mean train?" in machine.do("sponsors", "add", "trian", "lab", code=2)
    machine.do("cancel", "train")
    assert "has ended already" in machine.do("sponsors", "add", "train", "lab", code=2)


def test_both_sides_see_a_loan_and_the_lender_can_end_it(machine: Machine) -> None:
    funding = "  funding: {allowBorrow: true, sponsors: [lab]}\n"
    submit(machine, "short", 2, more=funding + "  runtime: {maxDuration: 1h}\n")
    submit(machine, "long", 6, more=funding)
    (lab,) = machine.ask("budgets", "lent", "lab")["budgets"]
    (main,) = lab["envelopes"]
    assert main["caps"] == [{"of": "gpus", "lent": 6, "cap": 8, "warning": None}]
    assert [(loan["run"], loan["borrower"], loan["gpus"], loan["until"]) for loan in main["loans"]] == [
        ("long", "org:a", 6, None)
    ]
    assert "no limit" in machine.do("budgets", "lent", "lab")

    submit(machine, "more", 2, owner="org:b", more=funding + "  runtime: {maxDuration: 1h}\n")
    told = machine.popen("budgets", "lent")
    out, err = told.communicate(timeout=60)
    assert "LendingCapExceeded" in out
    assert "warning: lab: main: 8 of 8 GPUs are lent" in err
    borrowed = machine.ask("budgets", "borrowed", "--owner", "org:b")["loans"]
    assert [(loan["run"], loan["lender"], loan["envelope"]) for loan in borrowed] == [("more", "lab", "main")]
    assert borrowed[0]["until"] == machine.ask("show", "more")["status"]["deadline"]

    stopped = machine.do("budgets", "stop-lending", "lab")
    assert "budget/lab lends nothing more from main" in stopped
    assert "kept: nothing more is lent" in stopped
    assert "ACLDenied" in submit(machine, "late", 1, owner="org:c", more=funding)
    machine.runs("long")
    machine.runs("more")

    assert "6 GPUs overdrawn" in machine.do("budgets", "stop-lending", "lab", "main", "--recall")
    spec = machine.ask("budgets", "list")["budgets"][0]["spec"]
    assert spec["envelopes"][0]["lending"] == {"maxConcurrency": 0}
    assert machine.ask("show", "long")["status"]["funding"]["overdrawn"]["gpus"] == 6
    assert phase(machine, "long") == "Running", "Hold: it goes on while nobody funded needs the GPUs"
    assert "has no envelope wast; it has main" in machine.do("budgets", "stop-lending", "lab", "wast", code=2)
    assert machine.ask("audit")["ok"] is True


def test_an_invoice_from_the_export_agrees_with_who_pays(machine: Machine) -> None:
    elastic = "  malleable: {minTotalGPUs: 2, maxTotalGPUs: 6, stepGPUs: 2}\n  funding: {allowBorrow: true, sponsors: [lab]}\n"
    submit(machine, "grows", 2, more=elastic)
    until = time.monotonic() + 30
    while machine.ask("show", "grows")["status"]["width"]["allocated"] < 6:
        assert time.monotonic() < until, "it never grew"
        time.sleep(0.1)
    submit(machine, "guest", 2, owner="org:b", more="  funding: {allowBorrow: true, sponsors: [lab]}\n")
    seen = measured(machine)
    assert seen["elastic_grows_total"] == 2
    assert seen['elastic_width_current{flavor="H100"}'] == 6
    assert seen["borrowed_gpus_current"] == 6
    machine.do("down")
    up(machine)
    assert measured(machine)["borrowed_gpus_current"] == 6, "gauges are right at once"
    assert measured(machine)['elastic_width_current{flavor="H100"}'] == 6
    machine.do("cancel", "grows", "guest")

    rows = invoices.read(machine.do("export", "leases"))
    told: Counter[tuple[str, ...]] = Counter()
    answer = json.loads(machine.do("who-pays", "--owner", "org", "--all", "-o", "json"))
    for run in answer["runs"]:
        for payer in run["payers"]:
            whom = (f"default/{run['name']}", run["owner"], f"default/{payer['budget']}", payer["envelope"])
            told[*whom, payer["owner"], payer["class"]] = payer["gpuMilliseconds"]
    assert told == invoices.by_payer(rows, 0)
    lent = sum(cost for whom, cost in told.items() if whom[-1] == "borrowed")
    totals = machine.ask("who-pays", "--sponsor", "lab", "--all")["owners"]
    assert [(each["owner"], each["class"], each["gpuMilliseconds"]) for each in totals] == [("lab", "borrowed", lent)]
    ended = machine.ask("show", "grows")["status"]
    assert len(ended["leases"]) == 6
    assert round(measured(machine)["borrowed_gpu_hours_total"] * 3_600_000) == lent
    table = machine.do("who-pays", "--sponsor", "lab", "--all", "--totals", "-o", "wide").splitlines()
    assert table[1].split() == ["lab", "borrowed", "0", f"{lent / 3_600_000:.9f}"]

    change = machine.ask("show", "guest")["status"]["startedAt"]
    halves = [machine.ask("who-pays", edge, change)["owners"] for edge in ("--until", "--since")]
    bills = [{(each["owner"], each["class"]): each["gpuMilliseconds"] for each in half} for half in halves]
    assert all(0 < bill["lab", "borrowed"] < lent for bill in bills), "the growing run lies on both sides"
    whole = {
        (each["owner"], each["class"]): each["gpuMilliseconds"] for each in machine.ask("who-pays", "--all")["owners"]
    }
    assert Counter(bills[0]) + Counter(bills[1]) == whole, "periods add up, and to the ledger"
    assert sum(whole.values()) == sum(told.values())


def test_loans_that_were_refused_are_counted_by_cause(machine: Machine) -> None:
    funding = "  funding: {allowBorrow: true, sponsors: [lab]}\n"
    submit(machine, "fits", 8, owner="org:b", more=funding)
    submit(machine, "plain", 8)
    submit(machine, "full", 8, owner="org:c", more=funding)
    seen = measured(machine)
    assert seen["borrowing_attempts_total"] == 2
    assert seen['borrowing_denied_total{cause="LendingCapExceeded"}'] == 1
    assert [name for name in seen if name.startswith("borrowing_denied_total")] == [
        'borrowing_denied_total{cause="LendingCapExceeded"}'
    ]


def test_leases_are_found_by_who_is_above_their_owner(machine: Machine) -> None:
    funding = "  funding: {allowBorrow: true, sponsors: [lab]}\n"
    submit(machine, "below", 2)
    submit(machine, "beside", 1, owner="orga", more=funding)
    found = machine.ask("leases", "--owner", "org")["leases"]
    assert {lease["spec"]["runRef"]["name"] for lease in found} == {"below"}
    assert len(found) == 2
