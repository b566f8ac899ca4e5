"""python -m tools.controlplane build | up | down: what the Makefile calls."""

from __future__ import annotations

import os
import sys

from tools.controlplane.build import Missing, cache, ensure
from tools.controlplane.cluster import down, up


def main() -> int:
    """Do as the one argument says. A missing toolchain is an error where someone asked for it, or in CI."""
    verb = sys.argv[1] if len(sys.argv) == 2 else ""
    try:
        if verb == "build":
            ensure()
            print(f"The control plane's binaries are in {cache() / 'bin'}")
        elif verb == "up":
            up()
        elif verb == "down":
            print("The cluster is gone." if down() else "No cluster runs here.")
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1 if verb != "build" or os.environ.get("CI") else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
