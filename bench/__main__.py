"""Run every benchmark and print one JSON object: {name: {figures…, "target": …, "met": …}}.

`python -m bench` measures everything, which takes some minutes; `python -m bench loop packing` only these. With `--quick` all is
scaled down to seconds; its figures are no verdict on the targets.
"""

from __future__ import annotations

import argparse
import json
import sys

from bench import admission, burst, cluster, forecast, link, loop, packing, quality, resolver, restart, swap, trace
from bench.synthetic import Figures
from fairlease.scheduler import calm_collector

MODULES = {
    "admission": admission,
    "packing": packing,
    "loop": loop,
    "burst": burst,
    "restart": restart,
    "resolver": resolver,
    "forecast": forecast,
    "swap": swap,
    "trace": trace,
    "quality": quality,
    "link": link,
    "cluster": cluster,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Fairlease against what it promises.")
    parser.add_argument("--quick", action="store_true", help="scale everything down")
    parser.add_argument("only", nargs="*", choices=[*MODULES, []], help="which benchmarks (default: all)")
    arguments = parser.parse_args()
    calm_collector()
    found: dict[str, Figures] = {}
    for name in arguments.only or MODULES:
        found |= MODULES[name].run(quick=arguments.quick)
    print(json.dumps(found, indent=2, ensure_ascii=False))
    return 0 if all(figures.get("met", True) for figures in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
