"""How tests are spread over the cores: tests that share something dear run on one worker, all others wherever there is room."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from fairlease.ledger.state.state import State

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling


State.checking = True  # every test proves all indexes against a scan after every event (`State.check`)

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # A shell's job in the background would hand that on to what tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # without xdist there is nothing to spread
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Our own and not xdist's `loadgroup`, which renames tests in a way that pytest 9.2 does not see, and so groups nothing."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
        """Tests in tests/kube share one control plane, but those in files called `…_alone.py`, which start their own.

        Tests in tests/browser share one browser.
        """

        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file.startswith("tests/browser/"):
                return "tests/browser"
            if not file.startswith("tests/kube/"):
                return nodeid
            return file if file.endswith("_alone.py") else "tests/kube"

    return Together(config, log)
