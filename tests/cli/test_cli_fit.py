"""Tables on narrow terminals, and output that cannot be written."""

import itertools
import os
import subprocess
import sys

import pytest
from tests.cli.fake import FakeDaemon, run_row, status_of
from tests.cli.test_cli_pipes import FAIRLEASE, on_terminal

from fairlease.cli.render.fit import LEAST, fit
from fairlease.cli.render.output import shortened, table
from fairlease.cli.render.runs_table import HEADINGS

LONG = "a-run-with-quite-a-long-name-amber-fox-12ab"


@pytest.mark.parametrize("columns", [80, 100])
def test_every_column_of_a_list_stays_visible(fake: FakeDaemon, columns: int) -> None:
    waits = status_of("Pending", "ConcurrencyCapExceeded")
    fake.answers["list"]["runs"].append(run_row(LONG, waits, owner="org:research:language:team-a"))
    lines = on_terminal("list", "--no-color", COLUMNS=str(columns)).splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].split() == list(HEADINGS)
    assert lines[-1].endswith("ConcurrencyCapExceeded")
    assert "Pending" in lines[-1]
    assert "…" in lines[-1]


def test_a_pipe_shows_the_longest_names_whole(fake: FakeDaemon) -> None:
    name, owner = "n" * 63, "org:" + "o" * 80
    fake.answers["list"]["runs"].append(run_row(name, status_of("Pending", "NoRoom"), owner=owner))
    told = subprocess.run([*FAIRLEASE, "list"], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert told.stdout.splitlines()[-1].split()[:2] == [name, owner]


@pytest.mark.parametrize("columns", [80, 100])
def test_the_state_of_an_envelope_is_not_cut(fake: FakeDaemon, columns: int) -> None:
    lines = on_terminal("budgets", "usage", "--no-color", COLUMNS=str(columns)).splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].endswith("STATE")
    assert lines[2].endswith("8 GPUs overdrawn")
    assert fake.asked


def test_columns_that_had_no_room_are_named(fake: FakeDaemon) -> None:
    lines = on_terminal("list", "-o", "wide", "--no-color", COLUMNS="80").splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert lines[-1].startswith("left out for want of room: ")
    assert {"NAME", "PHASE", "PAYER", "REASON"} <= set(lines[0].split())
    assert fake.asked


def test_a_dumb_terminal_gets_no_colour(fake: FakeDaemon) -> None:
    assert "\x1b" not in on_terminal("list", TERM="dumb")
    assert fake.asked


def test_a_watch_keeps_the_reason_on_a_narrow_terminal(fake: FakeDaemon) -> None:
    fake.answers["show"] = {
        "name": LONG,
        "namespace": "default",
        "by": "ada",
        "spec": {"owner": "org:team-a", "resources": {"gpuType": "H100-80GB", "totalGPUs": 8}},
        "status": status_of("Failed", "ConcurrencyCapExceeded"),
    }
    assert "ConcurrencyCapExceeded" in on_terminal("watch", LONG, "--until-done", COLUMNS="80")


def test_whatever_the_widths_a_table_never_leaves_the_terminal() -> None:
    for width, size in itertools.product(range(20, 160, 7), (1, 9, 40)):
        rows = [tuple("x" * size for _ in HEADINGS)]
        assert all(len(line) <= width for line in table(HEADINGS, rows, width=width))


def test_what_matters_most_goes_last() -> None:
    found = fit(HEADINGS, [len(heading) for heading in HEADINGS], 40)
    shown = [HEADINGS[column] for column in found.columns]
    assert {"NAME", "PHASE", "REASON"} <= set(shown)
    assert not {"NAME", "PHASE", "REASON", "STATE"} & set(LEAST)


@pytest.mark.parametrize(
    ("headings", "stay"),
    [
        (
            ("RESERVATION", "RUN", "STATE", "DATE", "COUNTDOWN", "REASON", "PAID BY", "DOMAIN"),
            {"RUN", "STATE", "COUNTDOWN"},
        ),
        (("OWNER", "STARTS", "INSIDE P10-P90", "BEFORE P50", "BEFORE P90", "MEAN ERROR", "BETTER BY"), {"OWNER"}),
        (
            ("NAME", "OWNER", "P10", "P50", "P90", "P50 AT", "AS OF", "SOURCE", "RESERVED FOR"),
            {"NAME", "P50", "SOURCE"},
        ),
    ],
)
def test_columns_go_whole_and_the_one_that_a_row_is_about_stays(headings: tuple[str, ...], stay: set[str]) -> None:
    rows = [tuple("2026-01-05T00:00:00.123Z" if name in ("DATE", "P50 AT", "AS OF") else "x" * 9 for name in headings)]
    for width in (60, 80):
        found = fit(headings, [max(len(name), len(cell)) for name, cell in zip(headings, rows[0], strict=True)], width)
        assert stay <= {headings[at] for at in found.columns}
        assert sum(found.widths) + found.gap * (len(found.widths) - 1) <= width, "nothing is cut in the middle"


def test_an_owner_is_shortened_at_its_beginning() -> None:
    assert shortened("org:research:team-a", 7, end=True) == "…team-a"
    assert shortened("org:research:team-a", 7) == "org:re…"


@pytest.mark.parametrize(
    "args", [("list",), ("list", "-o", "json"), ("list", "-o", "yaml"), ("watch",), ("--help",)], ids=" ".join
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line_and_a_code(fake: FakeDaemon, args: tuple[str, ...], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [*FAIRLEASE, *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 74
    assert done.stderr == "fairlease: the output could not be written: No space left on device\n"
    assert fake.path.exists()


def test_logs_onto_a_full_disk_do_not_blame_the_log(fake: FakeDaemon) -> None:
    path = fake.path.parent / "log"
    path.write_text("x" * 100_000)
    fake.answers["logs"] = {"files": [{"rank": 0, "attempt": 1, "path": str(path)}], "ended": True}
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [*FAIRLEASE, "logs", "train"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 74
    assert str(path) not in done.stderr


def test_a_closed_output_makes_no_noise(fake: FakeDaemon) -> None:
    command = f"{sys.executable} -m fairlease list >&-"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert fake.sent("list")
