"""The demo that the README promises: it plays to its end, shows what it says, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_demo_shows_a_refusal_a_loan_and_a_passing_audit_and_cleans_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "demo.py")],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for sign in ("ConcurrencyCapExceeded", "borrowed", "shared", "noSlotDoubled", "rank 1 of 2", "stopped"):
        assert sign in done.stdout
    assert not list(tmp_path.glob("fairlease-demo-*")), "the demo removes its folder"
    left = [path for path in Path("/proc").glob("[0-9]*/environ") if str(tmp_path).encode() in _read(path)]
    assert not left, "the demo ends every process it started"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
