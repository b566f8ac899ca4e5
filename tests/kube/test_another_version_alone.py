"""A controller of another version comes, or one goes back to: nobody lends a hand, and nothing is decided on half a ledger."""

from __future__ import annotations

import base64
import json
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from tests.kube.conftest import told
from tests.kube.plugin import Person
from tests.kube.stage import EXIT, Controller, Team, eventually
from tests.kube.tenancy import controller as as_controller
from tests.kube.tenancy import path, thing
from tools.controlplane import Plane

from fairlease.ledger.store.chain import entry_hash
from fairlease.ledger.store.snapshot import FORMAT

EVERY = 8
SETTINGS = f"snapshotEvery: {EVERY}\n"
FLAGS = ("--archive", "{archive}")


def filed(team: Team, role: str) -> list[dict[str, Any]]:
    return [each for each in team.listed(path("LedgerEntry")) if each["spec"]["role"] == role]


def archived(team: Team, mind: Controller) -> None:
    """Let runs come and end until the first entries lie in the archive alone; then have the controller stop in order."""

    def lived() -> bool:
        name = f"along-{len(team.listed(path('Run', team.namespace)))}"
        team.submit(name, 1, marks={EXIT: "0"})
        team.reaches(name, "Completed")
        return 1 not in [each["spec"]["seq"] for each in filed(team, "Entry")]

    eventually(lived, within_s=120)
    assert mind.stop() == 0


def taken_by_another(team: Team) -> None:
    """Make of all snapshots on the server ones of a later version, which says more than this one knows."""
    api = as_controller(team.plane)
    for each in filed(team, "Snapshot"):
        spec = each["spec"]
        assert not spec.get("parts"), "one object is enough here"
        body = msgspec.msgpack.decode(zlib.decompress(base64.b64decode(spec["body"])))
        later = msgspec.msgpack.encode({**body, "format": FORMAT + 1, "unheard": "of"})
        spec |= {"digest": sha256(later).hexdigest(), "body": base64.b64encode(zlib.compress(later)).decode()}
        assert api.delete(path("LedgerEntry", name=each["metadata"]["name"])).ok
        made = api.post(path("LedgerEntry"), thing("LedgerEntry", spec, each["metadata"]["name"]))
        assert made.ok, made.message


def test_who_cannot_read_a_snapshot_folds_the_entries_of_the_archive_and_goes_on(
    cluster: Plane, mind: Controller, archive: Path, team: Team
) -> None:
    team.submit("goes-on", 2)
    before = team.reaches("goes-on", "Running")
    archived(team, mind)
    taken_by_another(team)
    mind.start()
    eventually(lambda: mind.told("another version took the snapshots; the entries were folded instead"))
    team.submit("next", 2)
    team.reaches("next", "Running")
    after = team.status("goes-on")
    assert (after["phase"], after["attempt"], after["leases"]) == ("Running", 1, before["leases"])
    eventually(lambda: mind.told("snapshot"))
    snapshots = len(mind.told("snapshot"))
    mind.kill()
    mind.start()
    eventually(lambda: len(mind.told("decides")) == 3)
    assert len(mind.told("another version took the snapshots; the entries were folded instead")) == 1, snapshots
    team.submit("last", 2)
    team.reaches("last", "Running")
    admin = Person(cluster, "admin", "default")
    done = admin.types(
        "fairlease", "audit", "--kubeconfig", str(cluster.kubeconfig()), "-o", "json", "--archive", str(archive)
    )
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True), done.stdout


def test_who_has_no_archive_at_hand_decides_nothing_and_says_what_would_help(
    cluster: Plane, mind: Controller, archive: Path, team: Team, settings: str
) -> None:
    archived(team, mind)
    taken_by_another(team)
    entries = len(filed(team, "Entry"))
    alone = told(cluster, "alone", settings).start()
    assert alone.process is not None
    assert alone.process.wait(60) != 0
    said = alone.log.read_text()
    assert "was taken by another version of Fairlease" in said
    assert "--archive" in said
    assert "Traceback" not in said
    assert len(filed(team, "Entry")) == entries

    admin = Person(cluster, "admin", "default")
    blind = admin.sees("nodes", code=2)
    assert "use the one that the controller has" in blind
    assert "Traceback" not in blind
    assert team.owner in admin.sees("who-pays", f"{team.namespace}/along-0", "--archive", str(archive))
    mind.start()


def test_what_only_a_later_version_can_have_written_is_not_decided_upon(
    cluster: Plane, mind: Controller, team: Team, settings: str, flags: tuple[str, ...]
) -> None:
    assert mind.stop() == 0
    head = max(filed(team, "Entry"), key=lambda each: int(each["spec"]["seq"]))["spec"]
    seq, at, body = head["seq"] + 1, head["at"] + 1, b'[{"type":"SomethingNew","run":"default/x"}]'
    entry = {**head, "seq": seq, "at": at, "prev": head["hash"], "body": body.decode(), "parts": 0}
    entry["hash"] = entry_hash(head["hash"], seq, at, body)
    name = f"e-{seq:012d}"
    made = as_controller(cluster).post(path("LedgerEntry"), thing("LedgerEntry", entry, name))
    assert made.ok, made.message
    older = told(cluster, "older", settings, *flags).start()
    assert older.process is not None
    assert older.process.wait(60) != 0
    said = older.log.read_text()
    assert f"entry {seq} says what this version of Fairlease" in said
    assert "Traceback" not in said
    seen = Person(cluster, "admin", "default").sees("nodes", code=2)
    assert f"entry {seq} says what" in seen
    assert as_controller(cluster).delete(path("LedgerEntry", name=name)).ok
    mind.start()
    team.submit("after", 1)
    team.reaches("after", "Running")
