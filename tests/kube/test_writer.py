"""What was written and not seen yet counts as there: until it is seen, or should have been."""

from __future__ import annotations

import asyncio

from fairlease.kube.writer import Made


def test_what_was_written_is_there_until_its_version_was_passed_however_long_that_takes() -> None:
    async def act() -> None:
        place = [90]
        made = Made(lambda version: int(version) <= place[0])
        made.EXPIRES_S = -1.0  # the time that is given to what has no version is long over
        made.add("team/pod", "uid", "100")
        assert made.get("team/pod") == "uid"
        place[0] = 99
        assert made.get("team/pod") == "uid"
        place[0] = 120
        assert made.get("team/pod") is None, "it would have been seen by now: it was taken away"
        made.add("team/other", "uid")
        assert made.get("team/other") is None

    asyncio.run(act())
