"""The ipvs mode side by side, inside a user-mode kernel: few machines' own kernels have IPVS.

That kernel makes system calls and processes many times dearer than a real one, so times are worth
nothing but against each other. Both programs run in the same booted kernel, one after the other in
alternating order, each in a network namespace of its own there (`ipvs_guest`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kubeproxy.bench import ipvs_guest
from kubeproxy.bench.program import PROGRAMS, command_of
from kubeproxy.bench.records import Measurement, Size
from kubeproxy.testing.uml import UserModeKernel, missing

MODE = "ipvs"
_EXTRA_SECONDS = 60.0
"""For the API server to fill up, and the like."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What the proxy had used when it had settled."""

    cpu_seconds: float
    resident_mb: float


class GuestAnswer(msgspec.Struct, frozen=True):
    """What one run in the guest brought back."""

    cold: float | None
    changes: tuple[float | None, ...]
    usage: Usage
    log: str = ""


class IpvsEffort(msgspec.Struct, frozen=True):
    """How much of it."""

    sizes: tuple[Size, ...] = (Size(200, 5), Size(2000, 5))
    rounds: int = 2
    samples: int = 3
    cutoff_seconds: float = 60.0


def why_not() -> str:
    """Why this cannot be measured here; empty if it can."""
    return missing()


def measure_ipvs(
    effort: IpvsEffort,
    *,
    told: Callable[[str], None],
    found: Callable[[Sequence[Measurement]], None],
    seconds_left: Callable[[], float],
) -> None:
    """Both programs at all sizes, as far as the time goes; each run is told when it is done."""
    given_up: set[tuple[str, Size]] = set()
    with UserModeKernel(memory="1536M") as kernel:
        for size in effort.sizes:
            for number in range(effort.rounds):
                for program in PROGRAMS if number % 2 == 0 else PROGRAMS[::-1]:
                    if (program, size) in given_up or seconds_left() <= 0:
                        continue
                    told(f"{MODE} in a user-mode kernel, {size}, {program}")
                    measured = _one(kernel, program, size, effort)
                    if any(m.is_limit for m in measured):
                        given_up.add((program, size))
                    found(measured)


def _one(kernel: UserModeKernel, program: str, size: Size, effort: IpvsEffort) -> list[Measurement]:
    limit = effort.cutoff_seconds
    answer = kernel.call(
        Path(ipvs_guest.__file__),
        "measure",
        list(command_of(program)),
        size.services,
        size.endpoints,
        effort.samples,
        limit,
        timeout_seconds=limit * (1 + effort.samples) + _EXTRA_SECONDS,
    )
    return measurements(msgspec.convert(answer, GuestAnswer), program, size, limit)


def measurements(
    answer: GuestAnswer, program: str, size: Size, limit_seconds: float
) -> list[Measurement]:
    """An answer of the guest as measurements; what did not come is a limit."""

    def one(name: str, value: float | None, unit: str, scale: float = 1.0) -> Measurement:
        is_limit = value is None
        found = limit_seconds if value is None else value
        return Measurement(MODE, name, size, program, found * scale, unit, is_limit)

    if answer.cold is None:
        return [one("cold start", None, "s")]
    return [
        one("cold start", answer.cold, "s"),
        one("cold start, CPU", answer.usage.cpu_seconds, "CPU s"),
        one("memory after cold start", answer.usage.resident_mb, "MB"),
        *(one("endpoint replaced", change, "ms", 1000) for change in answer.changes),
    ]
