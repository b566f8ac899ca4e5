"""Exports: what others read of the ledger adds up to it, exactly, and never appears half-written."""

from __future__ import annotations

import csv
import io
import sys
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import EPOCH, History, cell
from tests.ledger.histories import sound_histories

from fairlease.ledger.store.export import CannotExport, export, export_charges, export_leases, hours_text, rewrite
from fairlease.ledger.store.memory import MemoryStore
from fairlease.ledger.store.protocol import LeaseQuery, LeaseRow
from fairlease.model.amount import HOUR, parse_gpu_hours, parse_instant
from fairlease.model.lease import Role

NOW = EPOCH + 3 * HOUR
WHOM = ("namespace", "run", "owner", "budget", "envelope", "payer", "class")
HEAD = "namespace,run,owner,budget,envelope,payer,class,leases,gpuMilliseconds,gpuHours"


def rows() -> list[LeaseRow]:
    """A lease that ended after an hour and a spare that is still open."""
    history = History().world().submits("train").opens("train", cell("n1", 0, 1), cell("n2", 0, role=Role.SPARE))
    store = history.after(HOUR + 1).closes("train", "train-1-0").into(MemoryStore())
    return list(store.leases(LeaseQuery()))


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_lease_line_tells_who_used_what_on_whose_money(tmp_path: Path) -> None:
    out = tmp_path / "leases.csv"
    assert export_leases(rows(), NOW, str(out)) == 2
    ended, still_open = read(out)
    assert ended == {
        "lease": "train-1-0", "namespace": "default", "run": "train", "owner": "org:ai", "attempt": "1", "group": "0",
        "rank": "0", "role": "Active", "node": "n1", "slots": "0 1", "gpus": "2", "start": "2023-11-14T22:13:20Z",
        "end": "2023-11-14T23:13:20.001Z", "closure": "Completed", "budget": "default/ai", "envelope": "main",
        "payer": "org:ai", "fund": "owned", "class": "owned", "reason": "Start", "gpuMilliseconds": "7200002",
        "gpuHours": "2.000000556",
    }  # fmt: skip
    assert (still_open["fund"], still_open["class"]) == ("owned", "spare")
    assert (still_open["role"], still_open["end"], still_open["closure"]) == ("Spare", "", "")
    assert (still_open["gpuMilliseconds"], still_open["gpuHours"]) == (str(3 * HOUR), "3")


@settings(max_examples=30, deadline=None)
@given(history=sound_histories(), later=st.integers(0, 10**12))
def test_charges_add_up_to_the_lease_lines_to_the_millisecond(
    tmp_path_factory: pytest.TempPathFactory, history: History, later: int
) -> None:
    store, folder = history.into(MemoryStore()), tmp_path_factory.mktemp("export")
    now = store.head().at + later
    export_leases(store.leases(LeaseQuery()), now, str(folder / "leases.csv"))
    export_charges(store.leases(LeaseQuery()), now, str(folder / "charges.csv"))
    sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for line in read(folder / "leases.csv"):
        total = sums[tuple(line[column] for column in WHOM)]
        end = now if line["end"] == "" else parse_instant(line["end"])
        assert int(line["gpuMilliseconds"]) == int(line["gpus"]) * (end - parse_instant(line["start"]))
        total[0] += 1
        total[1] += int(line["gpuMilliseconds"])
    charges = {
        tuple(line[column] for column in WHOM): [int(line["leases"]), int(line["gpuMilliseconds"])]
        for line in read(folder / "charges.csv")
    }
    assert charges == sums


@given(st.integers(0, 10**18))
def test_hours_as_text_give_the_milliseconds_back(gpu_ms: int) -> None:
    text = hours_text(gpu_ms)
    assert int((Decimal(text) * HOUR).to_integral_value()) == gpu_ms
    if gpu_ms % HOUR == 0:
        assert parse_gpu_hours(text) == gpu_ms
        assert "." not in text


def test_parquet_holds_the_same_with_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "leases.parquet"
    export_leases(rows(), NOW, str(out), "parquet")
    table = parquet.read_table(out)
    assert table.column("gpuMilliseconds").to_pylist() == [2 * (HOUR + 1), 3 * HOUR]
    assert table.column("gpuHours").to_pylist() == ["2.000000556", "3"]
    assert [str(field.type) for field in table.schema if field.name in ("start", "end")] == [
        "timestamp[ms, tz=UTC]"
    ] * 2
    assert table.column("closure").to_pylist() == ["Completed", None]
    export_charges(rows(), NOW, str(tmp_path / "charges.parquet"), "parquet")
    charges = parquet.read_table(tmp_path / "charges.parquet").to_pylist()
    assert [(row["class"], row["leases"], row["gpuMilliseconds"], row["gpuHours"]) for row in charges] == [
        ("owned", 1, 2 * (HOUR + 1), "2.000000556"), ("spare", 1, 3 * HOUR, "3"),
    ]  # fmt: skip


@pytest.mark.parametrize("what", ["leases", "charges"])
def test_csv_from_a_daemon_becomes_the_same_parquet(what: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    export(what, rows(), NOW, str(tmp_path / "direct"), "parquet")
    text = io.BytesIO()
    assert export(what, rows(), NOW, text) == 2
    assert rewrite(what, text.getvalue().decode(), str(tmp_path / "detour"), "parquet") == 2
    assert parquet.read_table(tmp_path / "direct").equals(parquet.read_table(tmp_path / "detour"))


def test_csv_with_other_columns_is_not_guessed_at(tmp_path: Path) -> None:
    with pytest.raises(CannotExport, match="another version"):
        rewrite("leases", "name,run\na,b\n", str(tmp_path / "leases.parquet"), "parquet")


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CannotExport, match=r"pip install 'fairlease\[parquet\]'"):
        export_leases(rows(), NOW, str(tmp_path / "leases.parquet"), "parquet")
    assert not list(tmp_path.iterdir())


def test_an_export_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    out = tmp_path / "leases.csv"
    out.write_text("the last one")

    def failing() -> object:
        yield from rows()
        raise RuntimeError("the disk came off")

    with pytest.raises(RuntimeError, match="came off"):
        export_leases(failing(), NOW, str(out))  # type: ignore[arg-type]  # a generator
    assert [path.name for path in tmp_path.iterdir()] == ["leases.csv"]
    assert out.read_text() == "the last one"


def test_an_export_to_nowhere_says_so(tmp_path: Path) -> None:
    with pytest.raises(CannotExport, match="No such file"):
        export_leases(rows(), NOW, str(tmp_path / "nowhere" / "leases.csv"))


def test_a_dash_writes_csv_to_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert export_charges(rows(), NOW, "-") == 2
    sys.stdout.write("and it is still open\n")
    sys.stdout.flush()
    head, *lines, after = capfdbinary.readouterr().out.decode().splitlines()
    assert head == HEAD
    assert lines == [
        "default,train,org:ai,default/ai,main,org:ai,owned,1,7200002,2.000000556",
        "default,train,org:ai,default/ai,main,org:ai,spare,1,10800000,3",
    ]
    assert after == "and it is still open"


def test_parquet_does_not_go_to_standard_output() -> None:
    with pytest.raises(CannotExport, match="name a file"):
        export_leases(rows(), NOW, "-", "parquet")


def test_an_empty_export_still_has_its_columns(tmp_path: Path) -> None:
    out = tmp_path / "charges.csv"
    assert export_charges([], NOW, str(out)) == 0
    assert out.read_text() == f"{HEAD}\n"
