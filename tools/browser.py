"""A Chromium to look at our pages with: `python -m tools.browser` finds it, and in CI installs it where it is missing.

The distribution's own package: 124 MB to load, 414 MB on disk, half a minute. Without it the tests that draw pages are skipped;
in CI they fail. CHROMIUM names another program that understands Chromium's flags.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
INSTALL = ("apt-get", "install", "--yes", "--quiet=2", "--no-install-recommends", "chromium")


class Missing(Exception):  # noqa: N818 - it says what happened
    """No browser here; the message says what would help."""


def find() -> str:
    """The program; raises `Missing`."""
    chosen = os.environ.get("CHROMIUM")
    found = next(filter(None, map(shutil.which, [chosen] if chosen else NAMES)), None)
    if found is None:
        tried = f"CHROMIUM names {chosen}, which is no program" if chosen else f"none of {', '.join(NAMES)} is there"
        raise Missing(f"No browser to draw pages with: {tried}. On Debian or Ubuntu: sudo {' '.join(INSTALL)}")
    return found


def main() -> int:
    """Say where it is. Where it is missing, CI installs it; elsewhere that is for the machine's owner to do."""
    ci = bool(os.environ.get("CI"))
    if ci and not any(map(shutil.which, NAMES)) and "CHROMIUM" not in os.environ and shutil.which(INSTALL[0]):
        before = () if os.geteuid() == 0 else ("sudo", "--non-interactive")
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run([*before, "apt-get", "update", "--quiet=2"], check=False, env=quiet)
        subprocess.run([*before, *INSTALL], check=False, env=quiet)
    try:
        print(f"Pages are drawn by {find()}")
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1 if ci else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
