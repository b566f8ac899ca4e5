"""Running means that processes were seen: until then a run is Pending with its GPUs, and not for long."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.machine import BUDGET, Machine
from tests.cli.test_cli_lost_ledger import wait_for, workers

CONFIG = """gpus: 8
flavor: H100-80GB
metricsPort: 0
bindDeadline: 3s
retryBackoff: 2s
"""


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        home = Path(folder)
        (home / "fairlease.yaml").write_text(CONFIG)
        user = Machine(home)
        user.do("up", "--config", str(home / "fairlease.yaml"))
        try:
            user.do("budgets", "apply", "-f", "-", stdin=BUDGET)
            yield user
        finally:
            user.do("down", "--end")


def told(machine: Machine, run: str) -> tuple[str, str]:
    status = machine.ask("show", run)["status"]
    return status["phase"], status.get("message", "")


@pytest.mark.parametrize("lost", ["logs", "pods", "members"])
def test_a_run_whose_processes_cannot_start_is_not_running_and_gives_its_gpus_back(machine: Machine, lost: str) -> None:
    folder = machine.home / lost
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("a file where a folder was")
    machine.submit("stuck", 2, "exec sleep 600")
    phase, message = told(machine, "stuck")
    assert phase == "Pending"
    assert message.startswith("starting: 0 of 2 pods")
    conditions = {each["type"]: each for each in machine.ask("show", "stuck")["status"]["conditions"]}
    assert (conditions["Placed"]["status"], conditions["Running"]["status"]) == ("True", "False")
    wait_for(lambda: str(folder) in machine.do("status"))
    assert str(folder) in machine.do("explain", "stuck")

    wait_for(lambda: "NotScheduled" in machine.do("list"))
    closed = machine.ask("leases", "--run", "stuck")["leases"]
    assert {each["status"]["closureReason"] for each in closed if each["status"]["closed"]} == {"NotScheduled"}
    assert all(each["status"]["closed"] for each in closed if each["spec"]["attempt"] == 1)
    explained = machine.do("explain", "stuck")
    assert f"0 of 2 pods started within 3s: {folder}" in explained
    assert "Not a directory; attempt 2 is asked for at" in explained
    assert str(folder) in machine.do("status")

    folder.unlink()
    folder.mkdir(mode=0o711)
    wait_for(lambda: told(machine, "stuck")[0] == "Running")
    assert len(workers(machine)) == 2
    status = machine.ask("status")
    assert (status["runs"], status["startProblem"]) == ({"Pending": 0, "Running": 1}, None)
    assert machine.ask("audit")["ok"]


def test_work_whose_folder_is_removed_goes_on_and_is_ended_when_its_run_is(machine: Machine) -> None:
    machine.submit("train", 2, "exec sleep 600")
    wait_for(lambda: told(machine, "train")[0] == "Running")
    shutil.rmtree(machine.home / "pods")
    (machine.home / "pods").mkdir(mode=0o700)
    before = workers(machine)
    assert len(before) == 2
    machine.do("cancel", "train")
    wait_for(lambda: not workers(machine))
