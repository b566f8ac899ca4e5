"""When a status is worth writing again."""

from __future__ import annotations

from tests.model.tables import table

from fairlease.kube.projection.statuses import alike


@table(
    "old new same",
    {
        "hours that pass are no news": (
            {"gpuHours": 1.0, "phase": "Running"},
            {"gpuHours": 2.0, "phase": "Running"},
            True,
        ),
        "a phase is": ({"phase": "Pending"}, {"phase": "Running"}, False),
        "a countdown may be off by a minute": ({"countdownSeconds": 90}, {"countdownSeconds": 40}, True),
        "and not by more, where its date is near": ({"countdownSeconds": 300}, {"countdownSeconds": 120}, False),
        "of a date that is far off a tenth is no news": ({"countdownSeconds": 7200}, {"countdownSeconds": 6600}, True),
        "a countdown that is over is told by the state": ({"countdownSeconds": 300}, {}, True),
    },
)
def test_a_status_is_written_again_only_for_what_people_would_miss(
    old: dict[str, object], new: dict[str, object], same: bool
) -> None:
    assert alike(old, new) is same
