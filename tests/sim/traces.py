"""Tiny traces of each format, as the public ones look, and the folder where those lie."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bench.trace import traces

PHILLY = "src_row,submit_ts,submit_s,vc,gpus,duration_s,arrival_rank"
HELIOS = "job_id,user,vc,submit_s,gpus,nodes,duration_s,state"
QUOTA = "cluster,vc,date_from,date_to,gpus"
SWF = """; Computer: a test
; Note: caf\xe9, which is no UTF-8
; UnixStartTime: 893466664
;
"""
PHILLY_START = datetime(2017, 10, 9, tzinfo=UTC)


def philly(folder: Path, jobs: Iterable[tuple[int, str, int, int]], heading: str = PHILLY) -> Path:
    """Jobs as (second, vc, GPUs, seconds), written in reverse: the rank alone tells the order."""
    rows = []
    for rank, (second, vc, gpus, duration) in enumerate(jobs):
        stamp = datetime.fromtimestamp(PHILLY_START.timestamp() + second, UTC).strftime("%Y-%m-%d %H:%M:%S")
        rows.append(f"{100 + rank},{stamp},{second},{vc},{gpus},{duration},{rank}")
    path = folder / "philly.csv.gz"
    path.write_bytes(gzip.compress("\n".join([heading, *reversed(rows), ""]).encode()))
    return path


def helios(folder: Path, *rows: str) -> Path:
    path = folder / "helios.csv"
    path.write_text("\n".join([HELIOS, *rows, ""]))
    return path


def swf(folder: Path, *rows: str) -> Path:
    path = folder / "tiny.swf"
    path.write_bytes((SWF + "\n".join(rows) + "\n").encode("latin-1"))
    return path


def quotas(folder: Path, *rows: str) -> Path:
    path = folder / "quota.csv"
    path.write_text("\n".join([QUOTA, *rows, ""]))
    return path


def public(name: str) -> Path:
    """A public trace; where the folder is missing, the test that wants it is skipped and says so."""
    path = traces() / name
    if not path.exists():
        pytest.skip(f"no public traces here: {path} is missing; FAIRLEASE_TRACES names their folder")
    return path
