"""Log lines and progress reports."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from forerun.obs.logs import configure_logging
from forerun.obs.progress import progress


@pytest.fixture(autouse=True)
def restored_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_line_holds_time_level_logger_and_message() -> None:
    stream = io.StringIO()
    configure_logging("info", stream=stream)
    logging.getLogger("room").debug("hidden")
    logging.getLogger("room").warning("%d seen", 3)
    (line,) = stream.getvalue().splitlines()
    time, rest = line.split(" ", 1)
    assert time.endswith("Z") and "T" in time
    assert rest == "WARNING room: 3 seen"


def test_json_line_is_one_object_with_the_traceback() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logging.getLogger("room").exception("failed")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "room", "failed")
    assert "RuntimeError: broken" in entry["traceback"]


def test_unknown_level_is_named() -> None:
    with pytest.raises(ValueError, match="loud"):
        configure_logging("loud")


def test_progress_without_a_terminal_logs_once_per_tenth(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with progress("loading") as report:
        for done in range(1001):
            report(done, 1000)
    assert [record.getMessage() for record in caplog.records] == [
        f"loading: {percent} %" for percent in range(0, 101, 10)
    ]


def test_progress_of_nothing_is_complete(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with progress("loading") as report:
        report(0, 0)
    assert [record.getMessage() for record in caplog.records] == ["loading: 100 %"]
