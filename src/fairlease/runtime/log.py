"""The log: JSON lines, one for each decision and event, for machines to read and people to search."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

import structlog

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


def json_lines(target: TextIO) -> FilteringBoundLogger:
    """A logger that writes to a file, or to what writes and flushes like one."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=True,
    )
    log: FilteringBoundLogger = structlog.get_logger()
    return log
