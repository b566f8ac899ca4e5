"""`make demo`: three teams share one box for a minute, with real processes and no GPU needed.

It starts a scheduler of its own in a temporary folder, shows what its users would do and see, and leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FAIRLEASE = str(Path(sys.executable).parent / "fairlease")

BUDGETS = """
apiVersion: rq.davidlangworthy.io/v1
kind: Budget
metadata: {name: lab}
spec:
  owner: lab
  envelopes: [{name: pool, flavor: H100-80GB, selector: {region: "*"}, concurrency: 2}]
---
apiVersion: rq.davidlangworthy.io/v1
kind: Budget
metadata: {name: vision}
spec:
  owner: lab:vision
  envelopes: [{name: own, flavor: H100-80GB, selector: {region: "*"}, concurrency: 2, maxGPUHours: 40}]
---
apiVersion: rq.davidlangworthy.io/v1
kind: Budget
metadata: {name: proteins}
spec:
  owner: bio:proteins
  envelopes:
  - name: own
    flavor: H100-80GB
    selector: {region: "*"}
    concurrency: 4
    lending: {allow: true, to: ["lab:*"], maxConcurrency: 2}
"""

GANG = """
apiVersion: rq.davidlangworthy.io/v1
kind: Run
metadata: {name: vision-train}
spec:
  owner: lab:vision
  resources: {gpuType: H100-80GB, totalGPUs: 4}
  gpusPerPod: 2
  runtime: {maxDuration: 1h}
  command:
  - sh
  - -c
  - |
    echo "rank $RANK of $WORLD_SIZE on GPUs $CUDA_VISIBLE_DEVICES, meets at $MASTER_ADDR:$MASTER_PORT"
    until [ -e trained ]; do sleep 0.2; done
"""

REFUSED = """
apiVersion: rq.davidlangworthy.io/v1
kind: Run
metadata: {name: speech-train}
spec:
  owner: lab:speech
  resources: {gpuType: H100-80GB, totalGPUs: 2}
  gpusPerPod: 2
  command: [sh, -c, 'echo speech trains on GPUs $CUDA_VISIBLE_DEVICES; sleep 4']
"""

COFUNDED = REFUSED.replace("speech-train", "speech-cofunded").replace(
    "  command:", '  funding: {allowBorrow: true, sponsors: ["bio:proteins"]}\n  command:'
)


class Stage:
    """One daemon in a temporary folder, and somebody who types."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "FAIRLEASE_HOME": str(folder / "home")}
        self.bold, self.plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")

    def say(self, text: str) -> None:
        """Tell the audience what comes."""
        print(f"\n{self.bold}# {text}{self.plain}", flush=True)

    def type(self, *words: str, may_say_no: bool = False) -> None:
        """Run a command as a user would."""
        print(f"$ fairlease {' '.join(words)}", flush=True)
        done = subprocess.run([FAIRLEASE, *words], cwd=self.folder, env=self.environment, check=False)
        if done.returncode not in ((0, 1) if may_say_no else (0,)):
            sys.exit(f"the demo failed: fairlease {words[0]} ended with {done.returncode}")

    def write(self, name: str, text: str) -> None:
        """Put a file where the commands are typed."""
        (self.folder / name).write_text(text.lstrip())


def play(stage: Stage) -> None:
    """The film."""
    stage.say("One box, eight GPUs (declared: there need be none). The scheduler is a daemon with a ledger in SQLite.")
    stage.type("up", "--gpus", "8", "--flavor", "H100-80GB", "--metrics-port", "0")
    stage.say("Three owners get money. The lab is head of a family; proteins lends two GPUs to anyone in the lab.")
    stage.write("budgets.yaml", BUDGETS)
    stage.type("budgets", "apply", "-f", "budgets.yaml")
    stage.say("Vision wants 4 GPUs and has money for 2. A quote first: the family pays the rest.")
    stage.write("vision.yaml", GANG)
    stage.type("plan", "-f", "vision.yaml")
    stage.type("submit", "-f", "vision.yaml")
    stage.type("list")
    stage.type("nodes")
    stage.say("Speech has no money of its own, and the family's is taken: refused, and every envelope says why.")
    stage.write("speech.yaml", REFUSED)
    stage.type("submit", "-f", "speech.yaml")
    stage.type("explain", "speech-train")
    stage.say("With a sponsor it starts at once: a co-funded run.")
    stage.write("cofunded.yaml", COFUNDED)
    stage.type("submit", "-f", "cofunded.yaml", "--wait")
    stage.type("logs", "speech-cofunded")
    stage.say("When vision is done its money is free again, and the refused run starts by itself.")
    stage.write("trained", "")
    stage.type("watch", "vision-train", "--until-done")
    stage.type("watch", "speech-train", "--until-done")
    stage.type("logs", "vision-train")
    stage.type("list")
    stage.say("Who paid, and what is left?")
    stage.type("who-pays", "vision-train")
    stage.type("who-pays", "speech-cofunded")
    stage.type("budgets", "usage")
    stage.say("Is all of it true? Replay the ledger from its first entry and prove it.")
    stage.type("audit")


def main() -> None:
    """Play, and clean up whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="fairlease-demo-"))
    stage = Stage(folder)
    try:
        play(stage)
    finally:
        stage.say("Clean up.")
        subprocess.run([FAIRLEASE, "down", "--end"], cwd=folder, env=stage.environment, check=False)
        shutil.rmtree(folder, ignore_errors=True)
    stage.say("What to try next")
    print("  docs/user-guide/quickstart.md       the same by hand, on your own box")
    print("  .venv/bin/fairlease simulate tests/scenarios/drained-work-ends-after-its-checkpoint.yaml")
    print("  .venv/bin/fairlease simulate --random 7 --steps 300")


if __name__ == "__main__":
    main()
