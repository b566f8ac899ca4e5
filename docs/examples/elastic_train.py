"""A training loop that survives the loss of ranks: data-parallel descent with in-job restart, in plain Python on CPUs.

    elastic_train.py CHECKPOINT_DIR [STEPS]

The ranks meet at MASTER_ADDR:MASTER_PORT, where the first member listens. Whenever somebody is lost, or $FAIRLEASE_MEMBERS tells of
another generation, everybody who is left drops the connections, reads who is in now, meets again and goes on from the last
checkpoint. No process that is healthy is restarted, and nobody asks for new GPUs: that is what the frameworks call in-job restart.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

MEMBERS = Path(os.environ["FAIRLEASE_MEMBERS"])
RANK = int(os.environ["RANK"])
NODE = os.environ["FAIRLEASE_NODE"]
EVERY = 5
TRUTH = (3.0, -2.0, 0.5)


class MeetAgain(Exception):
    """Somebody was lost, or the gang is another one by now."""


class Gang:
    """Who is in, as of one generation; `place` is this rank's number without gaps."""

    def __init__(self) -> None:
        told = json.loads(MEMBERS.read_text())
        self.generation: int = told["generation"]
        self.address = (told["master"]["address"], told["master"]["port"])
        self.ranks = [member["rank"] for member in told["members"]]
        self.size = len(self.ranks)
        if RANK not in self.ranks:  # we are leaving: SIGTERM is on its way
            time.sleep(60)
            sys.exit(0)
        self.place = self.ranks.index(RANK)

    def check(self) -> None:
        if json.loads(MEMBERS.read_text())["generation"] != self.generation:
            raise MeetAgain


class Peer:
    """The other end of a connection: JSON, line by line."""

    def __init__(self, link: socket.socket) -> None:
        link.settimeout(10)
        self.link = link
        self.lines = link.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        self.link.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = self.lines.readline()
        if not line.endswith(b"\n"):
            raise MeetAgain
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self.lines.close()
        self.link.close()


# --- meeting -----------------------------------------------------------------------------------------------------------


def gather(gang: Gang) -> dict[int, Peer]:
    """The first member waits for all others of its own generation."""
    peers: dict[int, Peer] = {}
    with socket.create_server(gang.address) as server:
        server.settimeout(0.1)
        try:
            while len(peers) < gang.size - 1:
                gang.check()
                try:
                    peer = Peer(server.accept()[0])
                    hello = peer.receive()
                except (TimeoutError, MeetAgain, OSError):
                    continue
                if hello["generation"] == gang.generation:
                    peers[hello["place"]] = peer
                else:
                    peer.close()
        except MeetAgain:
            for peer in peers.values():
                peer.close()
            raise
    return peers


def join(gang: Gang) -> Peer:
    """Everybody else looks for the first member until it listens."""
    while True:
        gang.check()
        try:
            peer = Peer(socket.create_connection(gang.address, timeout=1))
            peer.send({"generation": gang.generation, "place": gang.place})
        except OSError:
            time.sleep(0.05)
        else:
            return peer


# --- training ----------------------------------------------------------------------------------------------------------


def load(folder: Path) -> tuple[int, list[float]]:
    """The last checkpoint."""
    try:
        saved = json.loads((folder / "checkpoint.json").read_text())
    except FileNotFoundError:
        return 0, [0.0] * len(TRUTH)
    return saved["step"], saved["weights"]


def save(folder: Path, step: int, weights: list[float]) -> None:
    """There whole or not at all."""
    new = folder / f"checkpoint.{os.getpid()}"
    new.write_text(json.dumps({"step": step, "weights": weights}))
    new.rename(folder / "checkpoint.json")


def gradient(weights: list[float], step: int, gang: Gang) -> tuple[list[float], float]:
    """On this rank's share of the step's samples."""
    dice = random.Random(step)
    samples = [[dice.uniform(-1, 1) for _ in TRUTH] for _ in range(48)]
    total, loss = [0.0] * len(weights), 0.0
    for sample in samples[gang.place :: gang.size]:
        error = sum((mine - true) * x for mine, true, x in zip(weights, TRUTH, sample, strict=True))
        loss += error * error / len(samples)
        total = [sum_ + 2 * error * x / len(samples) for sum_, x in zip(total, sample, strict=True)]
    return total, loss


def lead(gang: Gang, folder: Path, steps: int) -> None:
    """The first member adds up everybody's gradients, steps, and saves every few steps."""
    peers = gather(gang)
    step, weights = load(folder)
    print(f"generation {gang.generation}: {gang.size} ranks {gang.ranks} go on from step {step}", flush=True)
    try:
        while step < steps:
            gang.check()
            for peer in peers.values():
                peer.send({"step": step, "weights": weights})
            total, loss = gradient(weights, step, gang)
            for peer in peers.values():
                answer = peer.receive()
                total = [a + b for a, b in zip(total, answer["gradient"], strict=True)]
                loss += answer["loss"]
            weights = [weight - 0.2 * slope for weight, slope in zip(weights, total, strict=True)]
            step += 1
            time.sleep(0.05)
            if step % EVERY == 0 or step == steps:
                save(folder, step, weights)
                print(f"step {step} loss {loss:.6f} on {gang.size} ranks", flush=True)
        for peer in peers.values():
            peer.send({"done": True})
    finally:
        for peer in peers.values():
            peer.close()


def follow(gang: Gang) -> None:
    """Everybody else answers each step with the gradient of its share."""
    peer = join(gang)
    try:
        while "done" not in (message := peer.receive()):
            slopes, loss = gradient(message["weights"], message["step"], gang)
            peer.send({"gradient": slopes, "loss": loss})
    finally:
        peer.close()


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(0)
    )  # who gives its GPUs back has nothing to save: the first member has
    print(f"rank {RANK} on {NODE}, process {os.getpid()}", flush=True)
    while load(folder)[0] < steps:
        try:
            gang = Gang()
            if gang.place == 0:
                lead(gang, folder, steps)
            else:
                follow(gang)
                return
        except (MeetAgain, OSError) as lost:
            print(f"rank {RANK} meets the others again: {lost or type(lost).__name__}", flush=True)
    print(f"rank {RANK} done", flush=True)


if __name__ == "__main__":
    main()
