"""What nvidia-smi says on good days and on bad ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairlease.local.daemon.gpus import Discovery, declared, discover, flavor_of, parse

GOOD = """\
0, GPU-5f0c2f3e-0001, NVIDIA H100 80GB HBM3, 81559
1, GPU-5f0c2f3e-0002, NVIDIA H100 80GB HBM3, 81559
"""


def test_a_good_answer_gives_every_gpu_with_its_flavor() -> None:
    found = parse(GOOD)
    assert [(gpu.index, gpu.uuid, gpu.flavor) for gpu in found.devices] == [
        (0, "GPU-5f0c2f3e-0001", "H100-80GB"),
        (1, "GPU-5f0c2f3e-0002", "H100-80GB"),
    ]
    assert found.problems == ()


@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error",
        "1, [GPU is lost], [GPU is lost], [GPU is lost]",
        "1, GPU-5f0c2f3e-0002, [Unknown Error], [Unknown Error]",
        "1, GPU-5f0c2f3e-0002, NVIDIA H100 80GB HBM3",
        "0, GPU-5f0c2f3e-0009, NVIDIA H100 80GB HBM3, 81559",
    ],
)
def test_a_broken_gpu_never_hides_or_renumbers_the_others(line: str) -> None:
    found = parse(f"0, GPU-5f0c2f3e-0001, NVIDIA L4, 23034\n{line}\n3, GPU-5f0c2f3e-0004, NVIDIA L4, 23034\n")
    assert [(gpu.index, gpu.uuid) for gpu in found.devices] == [(0, "GPU-5f0c2f3e-0001"), (3, "GPU-5f0c2f3e-0004")]
    assert found.problems == (line,)


@pytest.mark.parametrize("output", ["", "\n", "No devices were found\n"])
def test_a_machine_without_gpus_is_no_problem(output: str) -> None:
    assert parse(output) == Discovery()


def test_a_driver_that_does_not_answer_is_told_in_its_words() -> None:
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Is it loaded, and running?"
    assert parse(said + "\n") == Discovery(problems=(said,))


@pytest.mark.parametrize(
    ("product", "memory_mib", "flavor"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100-80GB"),
        ("NVIDIA H100 PCIe", 81559, "H100-80GB"),
        ("NVIDIA H100 NVL", 95830, "H100-94GB"),
        ("NVIDIA H200", 143771, "H200-141GB"),
        ("NVIDIA B200", 183359, "B200-180GB"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", 40536, "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-80GB"),
        ("Tesla V100-SXM2-16GB", 16160, "V100-16GB"),
        ("Tesla T4", 15109, "T4-16GB"),
        ("NVIDIA L40S", 46068, "L40S-48GB"),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX-4090-24GB"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX-6000-Ada-48GB"),
        ("NVIDIA GH200 480GB", 97871, "GH200-96GB"),  # 480 GB is the memory of its CPU
        ("NVIDIA A100-SXM4-80GB", None, "A100-80GB"),
        ("NVIDIA GB10", None, "NVIDIA-GB10"),  # it shares its CPU's memory and tells none
        ("NVIDIA Graphics Device", 81559, "NVIDIA-Graphics-Device"),
        ("NVIDIA Z1 (proto/A)", 57000, "Z1-proto-A-56GB"),  # a size that nobody sells yet
    ],
)
def test_a_flavor_is_model_and_memory_or_else_the_product(product: str, memory_mib: int | None, flavor: str) -> None:
    assert flavor_of(product, memory_mib) == flavor


def test_declared_gpus_are_known_by_number_only() -> None:
    found = declared("H100-80GB", 4)
    assert [(gpu.index, gpu.flavor, gpu.uuid) for gpu in found.devices] == [(n, "H100-80GB", None) for n in range(4)]
    assert declared("H100-80GB", 0) == Discovery()


def tool(tmp_path: Path, body: str) -> tuple[str, ...]:
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!{sys.executable} -IS\nimport sys, time\n{body}\n")
    script.chmod(0o755)
    return (str(script),)


def test_the_tool_is_asked_and_its_answer_read(tmp_path: Path) -> None:
    assert discover(tool(tmp_path, f"print({GOOD!r})")) == parse(GOOD)


def test_a_machine_without_the_tool_declares_its_gpus(tmp_path: Path) -> None:
    assert discover((str(tmp_path / "nvidia-smi"),)) == Discovery()


def test_a_tool_that_hangs_or_fails_is_a_problem(tmp_path: Path) -> None:
    (slow,) = discover(tool(tmp_path, "time.sleep(60)"), timeout_s=0.2).problems
    assert "within 0.2 s" in slow
    assert discover(tool(tmp_path, "sys.exit('version mismatch')")).problems == ("version mismatch",)
    (silent,) = discover(tool(tmp_path, "sys.exit(9)")).problems
    assert "code 9" in silent
    partly = discover(tool(tmp_path, f"print({GOOD!r}); sys.exit('and one is broken')"))
    assert (len(partly.devices), partly.problems) == (2, ("and one is broken",))
    (tmp_path / "nvidia-smi").chmod(0o644)
    assert "ermission" in discover((str(tmp_path / "nvidia-smi"),)).problems[0]
