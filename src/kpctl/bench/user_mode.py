"""The ipvs mode side by side, inside a user-mode kernel: few machines' own kernels have IPVS.

In that kernel system calls and processes cost many times what they cost in a real one, so times
have a meaning only against each other. Both programs run in the same booted kernel, one after the
other in alternating order, each on a node of its own there (`ipvs_guest`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kpctl.bench import ipvs_guest
from kpctl.bench.control import Limits
from kpctl.bench.ipvs_guest import MODE, Row, Task
from kpctl.bench.program import command_of, programs_of_round
from kpctl.bench.promise import PromiseEffort, cases
from kpctl.bench.records import UPSTREAM, Measurement, Size
from kpctl.bench.traffic import Effort
from kpctl.places.uml import UserModeKernel, missing

_MEMORY = "4G"
_EXTRA_SECONDS = 120.0
"""For loading the API server, and the like."""
_LIMITED = 12
"""Waits of one run that may each take as long as the limit."""


_GUEST_FOLDER = Path("/run")
"""Where a process inside that kernel may write."""


class IpvsEffort(msgspec.Struct, frozen=True):
    """What is measured, and how often."""

    sizes: tuple[Size, ...]
    rounds: int = 2
    upstream_services: int = 1_000_000
    """Upstream is not measured with more services than this."""
    limits: Limits = Limits()
    traffic: Effort = Effort()
    with_many: bool = True
    with_data: bool = True

    def task(self, program: str, size: Size) -> Task:
        return Task(
            program=program,
            command=command_of(program, _GUEST_FOLDER),
            size=size,
            limits=self.limits,
            traffic=self.traffic,
            with_many=self.with_many,
            with_data=self.with_data,
        )


def why_not() -> str:
    """Why ipvs cannot be measured on this machine; empty if it can."""
    return missing()


def user_mode_kernel() -> UserModeKernel:
    """A kernel to measure in, not yet booted."""
    return UserModeKernel(memory=_MEMORY)


def measure_ipvs(
    kernel: UserModeKernel,
    effort: IpvsEffort,
    *,
    started: Callable[[str], None],
    found: Callable[[Sequence[Measurement]], None],
    is_over: Callable[[str], bool],
) -> None:
    """Measure both programs at all sizes, without the runs for which `is_over` is true.

    `started` is called with the name of each run when it starts, `found` with what it measured.
    """
    given_up: set[tuple[str, Size]] = set()
    for size in effort.sizes:
        for number in range(effort.rounds):
            for program in programs_of_round(number):
                what = f"{MODE}, {size}, round {number + 1}, {program}"
                is_too_large = program == UPSTREAM and size.services > effort.upstream_services
                if is_too_large or (program, size) in given_up or is_over(what):
                    continue
                started(what)
                measured = _one(kernel, effort.task(program, size))
                if any(m.is_limit for m in measured):
                    given_up.add((program, size))
                found(measured)


def measure_programming(
    kernel: UserModeKernel,
    effort: PromiseEffort,
    *,
    started: Callable[[str], None],
    found: Callable[[Sequence[Measurement]], None],
    is_over: Callable[[str], bool],
) -> None:
    """Measure how long changes take under churn, at a rate that changes each Service once."""
    for case in cases(effort, (MODE,)):
        for size in effort.ipvs_sizes:
            what = f"promise, {case}, {size}"
            is_too_large = case.program == UPSTREAM and size.services > effort.ipvs_upstream
            if is_too_large or is_over(what):
                continue
            started(what)
            limits = Limits(
                cutoff_seconds=effort.start_seconds,
                churn_seconds=effort.seconds,
                churn_rate=min(effort.rate, round(size.services / effort.seconds)),
            )
            command = command_of(case.program, _GUEST_FOLDER)
            task = Task(case.program, command, size, limits, pause=case.pause)
            found(_one(kernel, task, "measure_programming"))


def _one(kernel: UserModeKernel, task: Task, measure: str = "measure") -> list[Measurement]:
    limit = task.limits.cutoff_seconds
    rows = kernel.call(
        Path(ipvs_guest.__file__),
        measure,
        msgspec.to_builtins(task),
        timeout_seconds=limit * (_LIMITED + 5 * task.limits.samples) + _EXTRA_SECONDS,
    )
    return measurements(msgspec.convert(rows, list[Row]), task.size, limit)


def measurements(rows: Sequence[Row], size: Size, limit_seconds: float) -> list[Measurement]:
    """The guest's rows as measurements; a row without a value is a limit."""
    limits = {"s": limit_seconds, "ms": limit_seconds * 1000}
    return [
        Measurement(MODE, row.name, size, row.program, limits[row.unit], row.unit, is_limit=True)
        if row.value is None
        else Measurement(MODE, row.name, size, row.program, row.value, row.unit)
        for row in rows
    ]
