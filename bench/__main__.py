"""Run every benchmark and print one JSON object: {name: {figures…, "target": …, "met": …}}.

    python -m bench                    everything, some minutes
    python -m bench --quick            scaled down, seconds; figures are then no verdict on the targets
    python -m bench loop packing       only these
"""

from __future__ import annotations

import argparse
import json
import sys

from bench import admission, burst, loop, packing, restart
from bench.synthetic import Figures

MODULES = {"admission": admission, "packing": packing, "loop": loop, "burst": burst, "restart": restart}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Fairlease against what it promises.")
    parser.add_argument("--quick", action="store_true", help="scale everything down")
    parser.add_argument("only", nargs="*", choices=[*MODULES, []], help="which benchmarks (default: all)")
    arguments = parser.parse_args()
    found: dict[str, Figures] = {}
    for name in arguments.only or MODULES:
        found |= MODULES[name].run(quick=arguments.quick)
    print(json.dumps(found, indent=2, ensure_ascii=False))
    return 0 if all(figures.get("met", True) for figures in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
