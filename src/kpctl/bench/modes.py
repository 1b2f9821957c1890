"""Figures of single modes: modules here that measure what concerns one mode alone.

Each is a program of its own (`python -m kpctl.bench.MODE`) that prints one sentence per
figure. It runs as a process of its own, so that memory and namespaces are its own as well, and
within a time limit; what it has printed by then counts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from kpctl.bench.records import ModeFigures
from kubeproxy.modes.registry import mode_names

SPINE = "spine"
"""What all modes share, measured without any."""
BALANCE = "balance"
"""Algorithms, in all modes and beside other programs; a part of its own."""


def modes_with_figures() -> tuple[str, ...]:
    names = (SPINE, *sorted(mode_names()))
    return tuple(name for name in names if find_spec(_module(name)) is not None)


def _module(mode: str) -> str:
    return f"kpctl.bench.{mode}"


def measure_mode(
    mode: str, *, arguments: Sequence[str] = (), limit_seconds: float = 300.0
) -> ModeFigures:
    """Run a mode's own benchmark. Return its sentences, and what went wrong if something did."""
    argv = [sys.executable, "-m", _module(mode), *arguments]
    command = " ".join(("python", *argv[1:]))
    # Unbuffered, so that a benchmark that is cut off has printed what it has measured.
    process = subprocess.Popen(
        [argv[0], "-u", *argv[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    problem = ""
    try:
        output, errors = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        problem = f"stopped after {limit_seconds:g} s"
    if not problem and process.returncode and not output:
        problem = (errors.strip().splitlines() or ["it ended without output"])[-1]
    return ModeFigures(mode, command, tuple(output.splitlines()), problem)
