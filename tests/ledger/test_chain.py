"""The chain: its bytes as a stranger would compute them, and every way in which it can be broken."""

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.builders import EPOCH, History

from fairlease.ledger.store import chain
from fairlease.ledger.store.protocol import GENESIS, Head

Rows = list[chain.Row]


def history() -> History:
    return History().world().submits("train").after(5).submits("other").after(7).submits("third")


def test_a_stranger_computes_the_same_hash_from_the_documentation_alone() -> None:
    for seq, at, prev, stated, body in history().rows():
        text = prev.hex().encode("ascii") + b"\n" + str(seq).encode() + b"\n" + str(at).encode() + b"\n" + body
        assert hashlib.sha256(text).digest() == stated
        assert isinstance(json.loads(body), list)


def test_the_shell_command_in_the_documentation_gives_the_same_hash(tmp_path: Path) -> None:
    seq, at, prev, stated, body = history().rows()[1]
    (tmp_path / "body.json").write_bytes(body)
    line = next(line for line in (chain.__doc__ or "").splitlines() if "sha256sum" in line)
    values = {"prev": prev.hex(), "seq": str(seq), "at": str(at), "PATH": "/usr/bin:/bin"}
    said = subprocess.run(["sh", "-c", line], env=values, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert said.stdout.split()[0] == stated.hex()


def test_the_first_entry_is_number_one_behind_zeros() -> None:
    first, second, *_ = history().entries()
    assert (first.seq, first.prev, first.at) == (1, GENESIS, EPOCH)
    assert (second.seq, second.prev) == (2, first.hash)


def test_a_whole_chain_holds_from_any_place() -> None:
    rows = history().rows()
    assert chain.verify(rows) is None
    seq, at, _, stated, _ = rows[1]
    assert chain.verify(rows[2:], Head(seq=seq, hash=stated.hex(), at=at)) is None


def test_an_entry_before_its_predecessor_is_never_sealed() -> None:
    head = Head(seq=3, at=EPOCH)
    with pytest.raises(ValueError, match="before its predecessor"):
        chain.seal(head, EPOCH - 1, ())


def resealed(rows: Rows, place: int, **changes: int) -> Rows:
    """Rows with one changed and every hash from there on computed anew, as a thorough forger would."""
    out, prev = rows[:place], rows[place][2]
    for seq, at, _, _, body in rows[place:]:
        at_then = changes.get("at", at) if not out or len(out) == place else at
        stated = bytes.fromhex(chain.entry_hash(prev.hex(), seq, at_then, body))
        out.append((seq, at_then, prev, stated, body))
        prev = stated
    return out


BREAKS: dict[str, tuple[Callable[[Rows], Rows], str]] = {
    "a byte of a body": (
        lambda rows: [rows[0], (*rows[1][:4], rows[1][4][:-1] + b" ]"), *rows[2:]],
        "bytes of entry 2",
    ),
    "a hash": (lambda rows: [rows[0], (*rows[1][:3], b"f" * 32, rows[1][4]), *rows[2:]], "bytes of entry 2"),
    "a time": (lambda rows: [rows[0], (2, rows[1][1] + 1, *rows[1][2:]), *rows[2:]], "bytes of entry 2"),
    "the name of the predecessor": (lambda rows: [rows[0], (*rows[1][:2], b"e" * 32, *rows[1][3:]), *rows[2:]], "name"),
    "an entry taken out": (lambda rows: [rows[0], *rows[2:]], "the entry behind 1 has number 3"),
    "two entries exchanged": (lambda rows: [rows[0], rows[2], rows[1], *rows[3:]], "the entry behind 1 has number 3"),
    "time turned back and all hashes renewed": (lambda rows: resealed(rows, 2, at=1), "entry 3 lies at 1"),
}


@pytest.mark.parametrize("change", BREAKS)
def test_every_change_of_a_chain_is_found(change: str) -> None:
    alter, expected = BREAKS[change]
    sentence = chain.verify(alter(history().rows()))
    assert sentence is not None
    assert expected in sentence
