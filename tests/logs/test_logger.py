"""Loggers: verbosity, streams, buffering and messages of libraries."""

from __future__ import annotations

import errno
import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest
from tests.support.waiting import LIMIT_SECONDS, wait_until

from kubeproxy.logs import (
    LogOptions,
    get_logger,
    set_verbosity,
    setup_logging,
    stop_logging,
)
from kubeproxy.logs.handler import InfoStream


class Streams:
    def __init__(self) -> None:
        self.out = io.StringIO()
        self.err = io.StringIO()

    def setup(self, options: LogOptions) -> None:
        setup_logging(options, stdout=self.out, stderr=self.err)


@pytest.fixture
def streams() -> Iterator[Streams]:
    yield Streams()
    stop_logging()
    logging.getLogger().setLevel(logging.WARNING)


log = get_logger("kubeproxy.test_logger")
library = logging.getLogger("some.library")


def test_everything_goes_to_stderr(streams: Streams) -> None:
    streams.setup(LogOptions())
    log.info("hello", key="value")
    library.warning("careful")
    log.error(ValueError("bad"), "failed", key=1)
    lines = streams.err.getvalue().splitlines()
    assert [line[0] for line in lines] == ["I", "W", "E"]
    assert lines[0].endswith('] "hello" key="value"')
    assert lines[2].endswith('] "failed" err="bad" key=1')
    assert streams.out.getvalue() == ""


def test_the_caller_is_the_line_that_logged(streams: Streams) -> None:
    streams.setup(LogOptions(is_json=True, verbosity=1))
    log.info("one")
    log.v(1).info("two")
    log.error(None, "three")
    callers = [json.loads(line)["caller"] for line in streams.err.getvalue().splitlines()]
    numbers = [int(caller.removeprefix("logs/test_logger.py:")) for caller in callers]
    assert numbers[1] == numbers[0] + 1 and numbers[2] == numbers[1] + 1


def test_an_error_may_be_missing(streams: Streams) -> None:
    streams.setup(LogOptions())
    log.error(None, "failed")
    assert streams.err.getvalue().endswith('] "failed"\n')


def test_verbose_messages_need_their_level(streams: Streams) -> None:
    streams.setup(LogOptions(verbosity=2, is_json=True))
    log.v(2).info("shown")
    log.v(3).info("hidden")
    (line,) = streams.err.getvalue().splitlines()
    assert (json.loads(line)["msg"], json.loads(line)["v"]) == ("shown", 2)
    assert log.v(2).enabled and not log.v(3).enabled


def test_verbosity_changes_while_running(streams: Streams) -> None:
    streams.setup(LogOptions())
    assert not log.v(4).enabled
    set_verbosity(4)
    assert log.v(4).enabled and not log.v(5).enabled
    assert get_logger("kubeproxy.made_later").v(4).enabled


def test_a_pattern_sets_the_level_of_matching_modules(streams: Streams) -> None:
    streams.setup(LogOptions(verbosity=1, vmodule=(("test_log*", 5), ("test_*", 7))))
    assert log.v(5).enabled and not log.v(6).enabled
    other = get_logger("kubeproxy.modes.sink")
    assert other.v(1).enabled and not other.v(2).enabled


def test_keys_may_be_called_like_parameters(streams: Streams) -> None:
    streams.setup(LogOptions())
    log.info("m", message=1, self=2, error=3)
    assert streams.err.getvalue().endswith("message=1 self=2 error=3\n")


def test_split_streams(streams: Streams) -> None:
    streams.setup(LogOptions(split_stream=True))
    log.info("fine")
    library.warning("careful")
    log.error(None, "failed")
    assert [line[0] for line in streams.out.getvalue().splitlines()] == ["I", "W"]
    assert [line[0] for line in streams.err.getvalue().splitlines()] == ["E"]


def test_buffered_messages_wait_until_there_are_enough(streams: Streams) -> None:
    streams.setup(LogOptions(split_stream=True, info_buffer_bytes=150, flush_seconds=3600))
    log.info("first")
    assert streams.out.getvalue() == ""
    log.info("x" * 150)
    assert streams.out.getvalue().count("\n") == 2
    log.info("third")
    stop_logging()
    assert streams.out.getvalue().count("\n") == 3


def test_buffered_messages_are_written_regularly(streams: Streams) -> None:
    class Signalling(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.written = threading.Event()

        def write(self, text: str, /) -> int:
            if text:
                self.written.set()
            return super().write(text)

    out = Signalling()
    options = LogOptions(split_stream=True, info_buffer_bytes=10_000, flush_seconds=0.01)
    setup_logging(options, stdout=out, stderr=streams.err)
    log.info("soon")
    assert out.written.wait(LIMIT_SECONDS)


def test_messages_of_libraries_have_the_same_format(streams: Streams) -> None:
    streams.setup(LogOptions())
    library.warning("odd %s", "thing")
    try:
        raise ValueError("boom")
    except ValueError:
        library.exception("crashed")
    library.debug("noise")
    warning, error, *trace = streams.err.getvalue().splitlines()
    assert warning.startswith("W") and warning.endswith("] odd thing")
    assert error.startswith("E") and error.endswith("] crashed")
    assert trace[-1] == "\tValueError: boom"


def test_a_closed_stream_does_not_stop_the_program(streams: Streams) -> None:
    streams.setup(LogOptions())
    streams.err.close()
    log.info("no reader")
    stop_logging()


def test_setting_up_again_replaces_the_first(streams: Streams) -> None:
    streams.setup(LogOptions())
    second = Streams()
    second.setup(LogOptions(is_json=True))
    log.info("once")
    assert streams.err.getvalue() == ""
    assert json.loads(second.err.getvalue())["msg"] == "once"


def test_a_buffered_log_is_written_again_when_the_disk_has_room() -> None:
    """A failed write must not end the thread that writes regularly."""
    failures = 3

    class Disk(io.StringIO):
        def flush(self) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise OSError(errno.ENOSPC, "No space left on device")

    disk = Disk()
    stream = InfoStream(disk, buffer_bytes=1000, flush_seconds=0.001)
    wait_until(lambda: not failures)
    stream.write("at last")
    wait_until(lambda: "at last" in disk.getvalue())
    stream.stop()
