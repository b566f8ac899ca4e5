"""Notices, through a real daemon: to a real HTTP server, a real command, real processes, and over crashes."""

from __future__ import annotations

import json
import pwd
import shutil
import socket
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.local.mailbox import SHORT, SLEEP, Mailbox, free_port, metric, told
from tests.local.stage import budget_object, daemon, run_object, until
from tests.local.test_access import ALICE, AS_ROOT, BOB, as_user

from fairlease.model.amount import format_instant

FOREVER = run_object("old", 8, SLEEP)
LONG = "1m"
"""A notice after which nobody is cut while a test lasts: its warnings are in time however slow the machine is."""


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    box = Mailbox()
    yield box
    box.close()


def test_a_webhook_is_told_each_step_of_a_cut_once(tmp_path: Path, mailbox: Mailbox) -> None:
    port = free_port()
    config = f"notify: {{webhook: 'http://127.0.0.1:{mailbox.port}/hook'}}\n"
    with told(tmp_path, config, notice="6s", metrics_port=port) as stage:
        stage.call("submit", objects=[FOREVER])
        stage.call("submit", objects=[run_object("big", 8, "sleep 30")])
        stage.runs("big")
        until(lambda: mailbox.kinds()["RunStarted"])
        time.sleep(1)
        expected = {"DeficitForecast": 1, "CutComing": 2, "ReservationActive": 1, "RunCut": 1, "RunStarted": 1}
        assert mailbox.kinds() == expected
        assert len(set(mailbox.keys)) == len(mailbox.keys)
        deficit, coming = mailbox.got[0], mailbox.got[1]
        assert next(iter(deficit)) == "text"
        assert deficit["text"].startswith("big lacks 8 × H100: unless they come free, others give way at ")
        assert (coming["claim"], coming["due"], coming["gpus"]) == ("default/big", deficit["due"], 8)
        assert coming["runs"] == [{"run": "default/old", "reason": "RandomPreempt", "gpus": 8, "odds": 1.0}]
        (cut,) = [each for each in mailbox.got if each["kind"] == "RunCut"]
        assert (cut["run"], cut["claim"], cut["outcome"]) == ("default/old", "default/big", "outcome-1")
        assert cut["text"] == "old lost 8 GPUs to big (RandomPreempt; outcome-1); it has ended"
        url = stage.call("status")["metrics"]
        for name, value in {
            'notifications_total{kind="CutComing",result="delivered"}': 2,
            "resolver_invocations_total": 1,
            "resolver_lottery_draws_total": 1,
            "resolver_spares_dropped_total": 0,
            "resolver_shrinks_total": 0,
            "reservation_delay_seconds_count": 1,
            'reservations{state="Pending"}': 0,
            "notifications_pending": 0,
        }.items():
            assert metric(url, name) == value, name
        notices = stage.call("notices", run="old")["notices"]
        assert [each["kind"] for each in notices] == ["RunCut", "CutComing", "CutComing"]
        assert notices[0]["deliveries"] == [{"channel": "webhook", "state": "delivered"}]


def test_a_webhook_that_fails_is_tried_again_and_told_once(tmp_path: Path, mailbox: Mailbox) -> None:
    mailbox.answers = [500, 503]
    config = f"notify: {{webhook: 'http://127.0.0.1:{mailbox.port}/', kinds: [DeficitForecast]}}\n"
    with told(tmp_path, config, notice=LONG) as stage:
        stage.call("submit", objects=[FOREVER, run_object("big", 8, "true")])
        until(lambda: stage.call("status")["notifications"]["error"].endswith("500 Internal Server Error"))
        until(lambda: mailbox.got)
        until(lambda: stage.call("status")["notifications"] == {"pending": 0, "failed": 0, "error": ""})
        assert mailbox.kinds() == {"DeficitForecast": 1}


def test_a_warning_whose_time_has_passed_is_dropped_and_what_happened_is_told(tmp_path: Path, mailbox: Mailbox) -> None:
    mailbox.answers = [500] * 3  # the next try comes 3.5 s after the first
    port = free_port()
    config = f"notify: {{webhook: 'http://127.0.0.1:{mailbox.port}/'}}\n"
    with told(tmp_path, config, metrics_port=port) as stage:
        stage.call("submit", objects=[FOREVER, run_object("big", 8, "sleep 30")])
        until(lambda: mailbox.kinds()["RunStarted"])
        assert mailbox.kinds() == {"ReservationActive": 1, "RunCut": 1, "RunStarted": 1}
        states = {(each["kind"], each["deliveries"][0]["state"]) for each in stage.call("notices")["notices"]}
        assert {state for kind, state in states if kind in ("DeficitForecast", "CutComing")} == {"expired"}
        url = stage.call("status")["metrics"]
        assert metric(url, 'notifications_total{kind="CutComing",result="expired"}') == 2
        assert stage.call("status")["notifications"] == {"pending": 0, "failed": 0, "error": ""}


def test_a_run_that_could_not_start_in_time_is_told_over_every_channel_once(tmp_path: Path, mailbox: Mailbox) -> None:
    out = tmp_path / "out"
    script = f'echo "$FAIRLEASE_NOTICE $FAIRLEASE_RUN" >> {out}'
    ways = (
        f"webhook: 'http://127.0.0.1:{mailbox.port}/', command: [/bin/sh, -c, '{script}'], kinds: [LatestStartPassed]"
    )
    with told(tmp_path, f"notify: {{{ways}}}\n", notice=LONG) as stage:
        stage.call("submit", objects=[FOREVER])
        soon = format_instant(round(time.time() * 1000) + 1_000)
        stage.call("submit", objects=[run_object("late", 8, "true", runtime={"latestStart": soon})])
        until(lambda: mailbox.got and out.exists() and stage.call("status")["notifications"]["pending"] == 0)
        assert stage.ends("late")["reason"] == "LatestStartPassed"
        stage.kill()
        stage.start()
        time.sleep(1)
        assert out.read_text() == "LatestStartPassed late\n"
        (notice,) = mailbox.got
        assert (notice["run"], notice["owner"]) == ("default/late", "org:ai:rai")
        assert "its reservation is canceled" in notice["text"]


@pytest.mark.parametrize(("code", "word"), [(403, "Forbidden"), (302, "Found")])
def test_a_webhook_that_refuses_for_good_is_given_up_visibly(
    tmp_path: Path, mailbox: Mailbox, code: int, word: str
) -> None:
    mailbox.answers = [code]
    config = f"notify: {{webhook: 'http://127.0.0.1:{mailbox.port}/', kinds: [DeficitForecast]}}\n"
    with told(tmp_path, config, notice=LONG) as stage:
        stage.call("submit", objects=[FOREVER, run_object("big", 8, "true")])
        until(lambda: stage.call("status")["notifications"]["failed"] == 1)
        assert stage.call("status")["notifications"]["error"] == f"the webhook answered {code} {word}"
        assert mailbox.got == []


def test_what_a_killed_daemon_did_not_deliver_the_next_one_does_once(tmp_path: Path) -> None:
    port = free_port()
    with told(tmp_path, f"notify: {{webhook: 'http://127.0.0.1:{port}/'}}\n") as stage:
        stage.call("submit", objects=[FOREVER, run_object("big", 8, "sleep 30")])
        stage.runs("big")
        stage.kill()  # decided, and nobody could be told
        box = Mailbox(port)
        try:
            stage.start()
            until(lambda: box.kinds()["RunStarted"])
            assert box.kinds() == {"ReservationActive": 1, "RunCut": 1, "RunStarted": 1}, "it is too late to warn"
            until(lambda: stage.call("status")["notifications"]["pending"] == 0)
            before = box.kinds()
            stage.kill()
            stage.start()
            time.sleep(2)
            assert box.kinds() == before
        finally:
            box.close()


def test_a_daemon_killed_between_decision_and_outbox_loses_no_notice(tmp_path: Path, mailbox: Mailbox) -> None:
    config = f"notify: {{webhook: 'http://127.0.0.1:{mailbox.port}/', kinds: [RunCut, RunStarted]}}\n"
    with told(tmp_path, config) as stage:
        stage.call("submit", objects=[FOREVER, run_object("big", 8, "sleep 30")])
        blocker = sqlite3.connect(stage.home / "notices.db", isolation_level=None)
        blocker.execute("BEGIN EXCLUSIVE")  # so that the daemon can decide, and cannot write down whom to tell
        stage.runs("big")
        stage.kill()
        blocker.close()
        assert mailbox.got == []
        stage.start()
        until(lambda: mailbox.kinds()["RunStarted"])
        assert mailbox.kinds() == {"RunCut": 1, "RunStarted": 1}


def test_an_outbox_that_cannot_be_written_for_a_while_is_made_up_for(tmp_path: Path, mailbox: Mailbox) -> None:
    with told(tmp_path, f"notify: {{webhook: 'http://127.0.0.1:{mailbox.port}/', kinds: [RunStarted]}}\n") as stage:
        stage.call("submit", objects=[FOREVER, run_object("big", 8, "sleep 30")])
        blocker = sqlite3.connect(stage.home / "notices.db", isolation_level=None)
        blocker.execute("BEGIN EXCLUSIVE")
        stage.runs("big")
        blocker.execute("ROLLBACK")
        blocker.close()
        until(lambda: mailbox.kinds() == {"RunStarted": 1})


def test_a_delay_is_measured_from_the_first_promise_also_by_a_daemon_that_came_later(tmp_path: Path) -> None:
    port = free_port()
    with told(tmp_path, "", metrics_port=port) as stage:
        stage.call("submit", objects=[FOREVER, run_object("big", 8, "sleep 30")])
        url = stage.call("status")["metrics"]
        assert metric(url, 'reservations{state="Pending"}') == 1
        stage.kill()
        stage.start()
        stage.runs("big")
        assert metric(url, "reservation_delay_seconds_count") == 1
        assert metric(url, "reservation_delay_seconds_sum") < 10


def test_a_flood_of_notices_reaches_the_webhook_as_one(tmp_path: Path, mailbox: Mailbox) -> None:
    with told(
        tmp_path, f"notify: {{webhook: 'http://127.0.0.1:{mailbox.port}/', kinds: [RunStarted]}}\n", gpus=40
    ) as stage:
        stage.call("submit", objects=[run_object("first", 40, "sleep 1", runtime={"maxDuration": "5s"})])
        stage.call("submit", objects=[run_object(f"small-{number}", 1, "sleep 20") for number in range(40)])
        until(lambda: mailbox.got)
        time.sleep(0.5)
        assert [each["text"].split(",")[0] for each in mailbox.got] == ["40 × RunStarted"]


# --- to the run --------------------------------------------------------------------------------------------------------


def test_a_command_gets_the_notice_and_the_run_it_is_about(tmp_path: Path) -> None:
    out = tmp_path / "out"
    hook = tmp_path / "hook.sh"
    hook.write_text(
        f'#!/bin/sh\necho "$FAIRLEASE_NOTICE $FAIRLEASE_RUN $FAIRLEASE_DUE" >> {out}; cat >> {out}; echo >> {out}\n'
    )
    hook.chmod(0o755)
    with told(tmp_path, f"notify: {{command: [{hook}], kinds: [CutComing]}}\n", notice=LONG) as stage:
        stage.call("submit", objects=[FOREVER, run_object("big", 8, "true")])
        until(lambda: out.exists() and len(out.read_text().splitlines()) >= 2)
        first, body = out.read_text().splitlines()[:2]
        notice = json.loads(body)
        assert first == f"CutComing old {notice['due']}"
        assert notice["runs"][0]["run"] == "default/old"


def test_a_command_that_fails_is_tried_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = f"echo try >> {out}; [ $(wc -l < {out}) -ge 3 ] || {{ echo not yet; exit 3; }}"
    config = f"notify: {{command: [/bin/sh, -c, '{script}'], kinds: [DeficitForecast]}}\n"
    with told(tmp_path, config, notice=LONG) as stage:
        stage.call("submit", objects=[FOREVER, run_object("big", 8, "true")])
        until(lambda: stage.call("status")["notifications"]["error"] == "the command failed: exit code 3: not yet")
        until(lambda: stage.call("status")["notifications"]["pending"] == 0 and out.read_text() == "try\n" * 3)


def test_a_killed_daemon_leaves_no_command_behind(tmp_path: Path) -> None:
    marker = "61.7531"
    script = f"setsid sleep {marker} & sleep {marker}"
    config = f"notify: {{command: [/bin/sh, -c, '{script}'], kinds: [DeficitForecast]}}\n"
    with told(tmp_path, config, notice=LONG) as stage:
        stage.call("submit", objects=[FOREVER, run_object("big", 8, "true")])
        until(lambda: len(sleepers(marker)) == 2)
        stage.kill()
        until(lambda: not sleepers(marker))


def sleepers(marker: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:2] == [b"sleep", marker.encode()]:
                found.append(int(folder.name))
    return found


def test_a_signal_reaches_only_processes_that_catch_it(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    careful = f"trap 'echo saved >> {saved}' USR1; echo ready; {SLEEP}"
    with told(tmp_path, "notify: {signal: SIGUSR1}\n", notice=LONG) as stage:
        stage.call(
            "submit", objects=[run_object("careful", 4, careful), run_object("plain", 4, f"echo ready; {SLEEP}")]
        )
        until(lambda: stage.output("careful") and stage.output("plain"))
        stage.call("submit", objects=[run_object("big", 8, "true")])
        until(saved.exists)
        stage.runs("plain")  # it has no handler: the signal would have been its end
        states = {
            each["run"]: each["state"]
            for notice in stage.call("notices")["notices"]
            for each in notice.get("deliveries", ())
        }
        assert states == {"careful": "delivered", "plain": "unheard"}


def test_a_file_tells_the_work_when_the_cut_comes_and_goes_with_the_danger(tmp_path: Path) -> None:
    wait = 'while [ ! -e "$FAIRLEASE_NOTICE_FILE" ]; do sleep 0.05; done; cat "$FAIRLEASE_NOTICE_FILE"'
    script = f'{wait}; while [ -e "$FAIRLEASE_NOTICE_FILE" ]; do sleep 0.05; done; echo; echo over; sleep 30'
    config = tmp_path / "fairlease.yaml"
    config.write_text("notice: 1h\nminRuntime: 0s\ngrace: 1s\n")
    with daemon(tmp_path / "home", config=str(config)) as stage:
        stage.call("submit", objects=[run_object("old", 8, script)])
        stage.call("submit", objects=[run_object("big", 8, "true")])
        until(lambda: "}" in stage.output("old"))
        told_of = json.loads(stage.output("old").splitlines()[0])
        assert (told_of["kind"], told_of["run"], told_of["claim"]) == ("CutComing", "old", "big")
        assert told_of["due"] == stage.call("show", run="big")["status"]["earliestStart"]
        stage.kill()
        stage.start()
        time.sleep(0.5)
        assert "over" not in stage.output("old"), "a restart does not end the danger"
        stage.call("cancel", runs=["big"])
        until(lambda: "over" in stage.output("old"))


@AS_ROOT
def test_the_command_runs_as_the_runs_user_and_the_file_is_theirs_to_read() -> None:
    place = Path(tempfile.mkdtemp(prefix="fairlease-test-"))
    place.chmod(0o711)
    (place / "out").mkdir()
    (place / "out").chmod(0o777)
    config = place / "config.yaml"
    script = f'id -un > {place}/out/$FAIRLEASE_RUN.$FAIRLEASE_NOTICE; echo "$HOME" >> {place}/out/$FAIRLEASE_RUN.$FAIRLEASE_NOTICE'
    config.write_text(
        f"notice: 6s\n{SHORT}users: {{{ALICE}: [org:ai], {BOB}: [org:ai]}}\nnotify: {{command: [/bin/sh, -c, '{script}']}}\n"
    )
    careful = f'while [ ! -r "$FAIRLEASE_NOTICE_FILE" ]; do sleep 0.05; done; echo "told"; {SLEEP}'
    try:
        with daemon(place / "home", config=str(config)) as stage:
            as_user(ALICE, lambda: stage.call("submit", objects=[run_object("old", 8, careful)]))
            as_user(BOB, lambda: stage.call("submit", objects=[run_object("big", 8, "sleep 30")]))
            until((place / "out" / "big.RunStarted").exists)
            until(lambda: stage.call("status")["notifications"]["pending"] == 0)
            said = {path.name: path.read_text().split() for path in (place / "out").iterdir()}
            home = {name: pwd.getpwnam(name).pw_dir for name in (ALICE, BOB)}
            assert said["old.CutComing"] == said["old.RunCut"] == [ALICE, home[ALICE]]
            assert said["big.RunStarted"] == said["big.DeficitForecast"] == [BOB, home[BOB]]
            assert stage.output("old") == "told\n"
    finally:
        shutil.rmtree(place)


# --- money -------------------------------------------------------------------------------------------------------------


def test_hours_that_run_low_are_told_before_they_are_gone(tmp_path: Path, mailbox: Mailbox) -> None:
    config = (
        f"commitQuantum: 1s\nnotify: {{webhook: 'http://127.0.0.1:{mailbox.port}/', kinds: [HoursLow, HoursUsedUp]}}\n"
    )
    with told(tmp_path, config) as stage:
        stage.call("budgets.apply", objects=[budget_object("rai", maxGPUHours=0.02)])
        stage.call("submit", objects=[FOREVER])
        until(lambda: mailbox.kinds() == {"HoursLow": 2, "HoursUsedUp": 1})
        first, second, last = (each["text"] for each in mailbox.got)
        assert first.startswith("Budget rai: 80 % of the hours of main are used")
        assert "at the present rate they end at 2" in first
        assert second.startswith("Budget rai: 95 % of the hours of main are used")
        assert last == "Budget rai: the hours of envelope main are used up"
        until(lambda: stage.call("status")["notifications"]["pending"] == 0)
        stage.kill()
        stage.start()
        time.sleep(1.5)
        assert mailbox.kinds() == {"HoursLow": 2, "HoursUsedUp": 1}


def test_a_lender_is_warned_by_the_passing_of_time_before_its_hours_are_lent_out(
    tmp_path: Path, mailbox: Mailbox
) -> None:
    hook = f"{{webhook: 'http://127.0.0.1:{mailbox.port}/', kinds: [LendingCapNear, Overdrawn]}}"
    with told(tmp_path, f"commitQuantum: 100ms\nnotify: {hook}\n") as stage:
        lends = budget_object("bank", owner="org:bank", lending={"allow": True, "maxGPUHours": 0.01})
        stage.call("budgets.apply", objects=[lends, budget_object("poor", owner="org:poor", concurrency=1)])
        borrows = {"allowBorrow": True, "sponsors": ["org:bank"]}
        stage.call("submit", objects=[run_object("loan", 8, SLEEP, owner="org:poor", funding=borrows)])
        until(lambda: mailbox.kinds()["Overdrawn"])
        assert [each["kind"] for each in mailbox.got] == ["LendingCapNear", "Overdrawn"]
        assert mailbox.got[0]["text"].startswith("Budget bank: main has lent 0.009")


def test_a_stop_is_not_held_up_by_a_webhook_that_hangs(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        port = silent.getsockname()[1]
        with told(tmp_path, f"notify: {{webhook: 'http://127.0.0.1:{port}/'}}\n") as stage:
            stage.call("submit", objects=[FOREVER, run_object("big", 8, "true")])
            until(lambda: stage.call("status")["notifications"]["pending"])
            time.sleep(0.3)
            begun = time.monotonic()
            stage.stop()
            assert time.monotonic() - begun < 5


def test_a_broken_outbox_is_put_aside_and_keeps_nothing_from_starting(tmp_path: Path) -> None:
    with told(tmp_path, "") as stage:
        stage.stop()
        for name in ("notices.db-wal", "notices.db-shm"):
            (stage.home / name).unlink(missing_ok=True)
        (stage.home / "notices.db").write_bytes(b"no database" * 1000)
        stage.start()
        assert stage.call("notices")["notices"] == []
        assert (stage.home / "notices.db.broken").exists()
