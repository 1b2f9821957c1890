"""`make soak`: a day of churn in minutes, in one mode after the other. Fails if something grows."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tests.soak import guest
from tests.soak.day import Hour, Plan, findings, growth, live_through, slowdown

from kpctl.places.uml import UserModeKernel, missing

MODES = ("nftables", "iptables", "userspace", "ipvs")
_GUEST_SECONDS = 4 * 3600.0
ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--services", type=int, default=2000)
    parser.add_argument("--endpoints", type=int, default=5)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--changes", type=int, default=1000, help="per hour")
    parser.add_argument("--probes", type=int, default=5, help="changes per hour that are timed")
    given = parser.parse_args()
    found: list[str] = []
    for mode in given.mode or MODES:
        plan = Plan(
            mode,
            services=given.services,
            endpoints=given.endpoints,
            hours=given.hours,
            changes_per_hour=given.changes,
            probes_per_hour=given.probes,
            seed=time.time_ns(),
        )
        found += [f"{mode}: {each}" for each in one_day(plan)]
    print("\n".join(found) or "nothing found", flush=True)
    return 1 if found else 0


def one_day(plan: Plan) -> list[str]:
    """Live through one day and print it. Return what was found."""
    if plan.mode == "ipvs" and (reason := missing()):
        return [f"not run: {reason}"]
    began = time.monotonic()
    print(f"{plan.mode}, {plan.services} × {plan.endpoints}, seed {plan.seed}", flush=True)
    hours = in_guest(plan) if plan.mode == "ipvs" else here(plan)
    print(
        f"{plan.mode}: {plan.hours * plan.changes_per_hour:,} changes in"
        f" {(time.monotonic() - began) / 60:.1f} min; memory {growth(hours):+.2%},"
        f" latency × {slowdown(hours):.2f} from hour 2 to {plan.hours}",
        flush=True,
    )
    return findings(hours)


def here(plan: Plan) -> list[Hour]:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(live_through(plan, Path(folder), show))


def in_guest(plan: Plan) -> list[Hour]:
    """In a user-mode kernel: few machines' own kernels have IPVS."""
    with UserModeKernel(paths=[ROOT]) as kernel:
        answer = kernel.call(
            Path(guest.__file__),
            "live",
            msgspec.to_builtins(plan),
            timeout_seconds=_GUEST_SECONDS,
        )
    hours = msgspec.convert(answer, list[Hour])
    show_all(hours)
    return hours


def show(hour: Hour) -> None:
    print(hour, flush=True)


def show_all(hours: Sequence[Hour]) -> None:
    for hour in hours:
        show(hour)


if __name__ == "__main__":
    sys.exit(main())
