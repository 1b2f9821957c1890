"""The first process of a guest kernel: serves calls from the host, one JSON line each.

Every call runs in a child of its own with a network namespace of its own, so that no call sees
another's state. Modules named on the command line are imported beforehand, and the file of a call
once, before its child is made: that makes a call quick. `guest` is the other end. The standard
library is all it needs: a guest may have a root of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import sys
import traceback
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, NamedTuple

from kpctl.places.netns import leave_namespace

_POWER_OFF = 0x4321FEDC


class Call(NamedTuple):
    """Which function of which file, with which arguments."""

    file: str
    function: str
    arguments: list[object]


def serve(line: IO[bytes]) -> None:
    """Serve calls until the host sends null."""
    line.write(b"ready\n")
    for request in line:
        call = json.loads(request)
        if call is None:
            return
        # What the file imports is imported once, not in each child; an error is the call's own.
        with contextlib.suppress(Exception):
            _module(call["file"])
        _write_all(line, run_in_child(Call(**call)) + b"\n")


def _write_all(line: IO[bytes], data: bytes) -> None:
    """Write it piece by piece: an unbuffered device takes as much as it likes."""
    while data:
        data = data[line.write(data) :]


def run_in_child(call: Call) -> bytes:
    """Run one call in a child process. Return the encoded result."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _run_child(call, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        encoded = pipe.read()
    os.waitpid(child, 0)
    return encoded or json.dumps({"error": "the guest process died"}).encode()


def _run_child(call: Call, write_end: int) -> None:
    result: dict[str, object]
    try:
        result = {"value": _run(call)}
    except BaseException:
        result = {"error": traceback.format_exc()}
    with os.fdopen(write_end, "wb") as pipe:
        pipe.write(json.dumps(result, default=_as_builtins).encode())
    os._exit(0)


def _as_builtins(value: object) -> object:
    """Values of our own types are written as the host reads them."""
    import msgspec

    return msgspec.to_builtins(value)


def _run(call: Call) -> object:
    leave_namespace()
    return getattr(_module(call.file), call.function)(*call.arguments)


@cache
def _module(file: str) -> ModuleType:
    path = Path(file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    for name in sys.argv[2:]:
        importlib.import_module(name)
    with Path(sys.argv[1]).open("r+b", buffering=0) as line:
        serve(line)
    ctypes.CDLL(None).reboot(_POWER_OFF)


if __name__ == "__main__":
    main()
