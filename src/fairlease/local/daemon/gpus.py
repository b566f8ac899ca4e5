"""Which GPUs this machine has: asked of `nvidia-smi`, or declared by its owner.

Asking and reading are kept apart: `parse` is pure and is shown what `nvidia-smi` says on good and on bad days;
`discover` only runs it. A GPU that cannot be read (it fell off the bus) is left out, with its line as the problem; it
never hides the others, nor does it change their numbers.
"""

from __future__ import annotations

import re
import subprocess

from fairlease.model.record import Record

COMMAND = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
TIMEOUT_S = 30.0
"""Without persistence mode the driver is loaded for the question, for seconds on each GPU."""

_FIELDS = 4
_VENDOR = {"nvidia", "tesla", "quadro", "geforce", "graphics", "device", "generation"}
_SHAPE = re.compile(r"(SXM\d?|PCI-?e|NVL\d*|HBM\d\w?|SMX\d?)", re.IGNORECASE)
_SIZE = re.compile(r"(\d+) ?GB", re.IGNORECASE)
_MARKETED_GB = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 141, 180, 186, 192, 288)
_TOLERANCE = 0.08
_MIB_PER_GIB = 1024


class Device(Record, frozen=True, kw_only=True):
    """One GPU. `index` is its slot, in the order of the bus; `uuid` is None where it was only declared."""

    index: int
    flavor: str
    uuid: str | None = None


class Discovery(Record, frozen=True, kw_only=True):
    """What was found, by slot, and what could not be read, in the tool's own words."""

    devices: tuple[Device, ...] = ()
    problems: tuple[str, ...] = ()


def discover(command: tuple[str, ...] = COMMAND, timeout_s: float = TIMEOUT_S) -> Discovery:
    """Ask the driver. It blocks for up to `timeout_s`: call it before the event loop starts, or in a thread.

    Without `nvidia-smi` there are no devices and no problem: such a machine declares its GPUs, or has none.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    except FileNotFoundError:
        return Discovery()
    except subprocess.TimeoutExpired:
        return Discovery(problems=(f"{command[0]} gave no answer within {timeout_s:g} s",))
    except OSError as error:
        return Discovery(problems=(f"{command[0]}: {error.strerror}",))
    found = parse(done.stdout)
    if done.returncode == 0 or found.problems:
        return found
    said = done.stderr.strip() or f"{command[0]} ended with code {done.returncode}"
    return Discovery(devices=found.devices, problems=(said,))


def declared(flavor: str, count: int) -> Discovery:
    """GPUs that the machine's owner says are there: known by number only."""
    return Discovery(devices=tuple(Device(index=index, flavor=flavor) for index in range(count)))


def parse(output: str) -> Discovery:
    """Read the tool's lines; what is no GPU is a problem, and so is a GPU that is told twice."""
    devices: dict[int, Device] = {}
    problems = []
    for line in output.splitlines():
        device = _device(line)
        if device is not None and device.index not in devices:
            devices[device.index] = device
        elif line.strip() and line.strip() != "No devices were found":
            problems.append(line.strip())
    return Discovery(devices=tuple(devices[index] for index in sorted(devices)), problems=tuple(problems))


def _device(line: str) -> Device | None:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != _FIELDS:
        return None
    index, uuid, product, memory = fields
    if not index.isdecimal() or not uuid.startswith("GPU-") or not product or product.startswith("["):
        return None  # `[GPU is lost]`, `[Unknown Error]`
    memory_mib = int(memory) if memory.isdecimal() else None  # `[N/A]` where CPU and GPU share one memory
    return Device(index=int(index), flavor=flavor_of(product, memory_mib), uuid=uuid)


def flavor_of(product: str, memory_mib: int | None) -> str:
    """The flavor's name: model and memory, `NVIDIA H100 80GB HBM3` is `H100-80GB`.

    1. Vendor and brand (`NVIDIA`, `Tesla`, `GeForce`…) and shape (`SXM4`, `PCIe`, `NVL`, `HBM3`) make no flavor: who
       wants to tell them apart declares the GPUs.
    2. The memory is the size in the name, if the driver's number agrees (a `GH200 480GB` has 96 GB on its GPU); else
       the marketed size nearest to the driver's number.
    3. Where that leaves no model or no memory, the product itself, with hyphens, as GPU feature discovery labels it.
    """
    words = re.split(r"[\s-]+", _SIZE.sub(" ", product))
    model = [word for word in words if word and word.lower() not in _VENDOR and not _SHAPE.fullmatch(word)]
    size_gb = _size_gb(product, memory_mib)
    name = product if not model or size_gb is None else "-".join([*model, f"{size_gb}GB"])
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def _size_gb(product: str, memory_mib: int | None) -> int | None:
    named = [int(size) for size in _SIZE.findall(product)]
    if memory_mib is None:
        return named[0] if named else None
    real = memory_mib / _MIB_PER_GIB
    close = [size for size in (*named, *_MARKETED_GB) if abs(size - real) <= _TOLERANCE * size]
    # The name comes first in the list, and is right whenever it is close at all.
    if close and close[0] in named:
        return close[0]
    return min(close, key=lambda size: abs(size - real)) if close else round(real)
