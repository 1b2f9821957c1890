"""Our tool's commands without a start of their own: in a fork of a process that has imported it.

A start is half a second of processor time, nearly all of it imports, and hundreds of tests call a
command once. The child has files as its standard streams and is as separate as a program, so that a
command may close what it likes.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import BinaryIO, NoReturn

from tests.support.waiting import LIMIT_SECONDS

from kpctl.cli import main


def call_kpctl(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> CompletedProcess[str]:
    """What `kpctl` with these arguments prints, and its exit code."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = os.fork()
        if not child:
            _run(arguments, directory, environment, (output, errors))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        texts = (output.read().decode(), errors.read().decode())
    return CompletedProcess(["kpctl", *arguments], code, *texts)


def _run(
    arguments: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    streams: tuple[BinaryIO, BinaryIO],
) -> NoReturn:
    """Become the command, and end with it."""
    code: object = 1
    try:
        _separate(directory, environment, streams)
        main(arguments, prog_name="kpctl")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else code is not None)


def _text(number: int) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8")


def _separate(
    directory: Path, environment: Mapping[str, str], streams: tuple[BinaryIO, BinaryIO]
) -> None:
    """Leave what belongs to the tests: streams, timer, warnings as errors, event loop."""
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream.fileno(), number)
    sys.stdout, sys.stderr = _text(1), _text(2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(LIMIT_SECONDS))
    warnings.simplefilter("ignore")
    asyncio.set_event_loop(None)
    os.chdir(directory)
    os.environ.update(environment)
