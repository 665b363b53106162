"""Owns the set-up of logging for a process: one line an event, on standard error.

Knows nothing of what is logged; every module logs through `logging.getLogger(__name__)`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal, TextIO

LEVELS = ("debug", "info", "warning", "error")
Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = ("text", "json")


def configure_logging(
    level: str = "info", log_format: Format = "text", stream: TextIO | None = None
) -> None:
    """Sends every logger's lines of `level` and above to `stream` (standard error by default).

    A second call replaces the first. Raises ValueError for an unknown level.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown log level {level!r}; known are {', '.join(LEVELS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO verify_server.app: message`, in UTC."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.converter = time.gmtime


class JsonFormatter(TextFormatter):
    """One JSON object a line: time, level, logger, message, and the traceback where there is one.

    The time format is that of the text lines."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
