"""The first process of a user-mode kernel: serves calls from the host, one JSON line each.

Every call runs in a child of its own with a network namespace of its own, so that no call sees
another's state. Modules named on the command line are imported beforehand, which makes a call
quick. `uml` is the other end.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import IO

import msgspec

from kpctl.places.netns import leave_namespace

_POWER_OFF = 0x4321FEDC


class Call(msgspec.Struct, frozen=True):
    """Which function of which file, with which arguments."""

    file: str
    function: str
    arguments: list[object]


def serve(line: IO[bytes]) -> None:
    """Serve calls until the host sends null."""
    line.write(b"ready\n")
    for request in line:
        call = msgspec.json.decode(request, type=Call | None)
        if call is None:
            return
        line.write(run_in_child(call) + b"\n")


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
    return encoded or msgspec.json.encode({"error": "the guest process died"})


def _run_child(call: Call, write_end: int) -> None:
    result: dict[str, object]
    try:
        result = {"value": _run(call)}
    except BaseException:
        result = {"error": traceback.format_exc()}
    with os.fdopen(write_end, "wb") as pipe:
        pipe.write(msgspec.json.encode(result))
    os._exit(0)


def _run(call: Call) -> object:
    leave_namespace()
    path = Path(call.file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return getattr(module, call.function)(*call.arguments)


def main() -> None:
    for name in sys.argv[2:]:
        importlib.import_module(name)
    with Path(sys.argv[1]).open("r+b", buffering=0) as line:
        serve(line)
    ctypes.CDLL(None).reboot(_POWER_OFF)


if __name__ == "__main__":
    main()
