"""The long run, `make fuzz`: every target for its share of the time, then the properties.

Prints how often each was executed, and fails if something was found. Inputs that led to new ways
through the code stay in build/fuzz, so that the next run goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.targets import TARGETS

FOLDER = Path("build/fuzz")
PROPERTIES_SHARE = 0.25
_EXECUTIONS = re.compile(r"(?:executions|stat::number_of_executed_units:)\s+(\d+)")
_STOP_SECONDS = 120.0
_PYTEST = ("tests/fuzz/test_fuzz_properties.py", "-q", "-p", "no:cacheprovider", "-o", "timeout=0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--target", choices=[*TARGETS, "properties"], action="append")
    given = parser.parse_args()
    seconds = 60 * given.minutes
    wanted = given.target or [*TARGETS, "properties"]
    names = [name for name in wanted if name in TARGETS]
    has_properties = "properties" in wanted
    share = 1 - PROPERTIES_SHARE if has_properties and names else 1.0
    total, found = 0, list[str]()
    for name in names:
        total += report(name, *run_target(name, seconds * share / len(names)), found)
    if has_properties:
        budget = seconds * (PROPERTIES_SHARE if names else 1.0)
        counts, output = run_properties(budget)
        for name, executions in counts.items():
            total += report(f"property {name}", executions, "", found)
        if output:
            found.append("properties")
            print(output)
    print(f"{'all':24} {total:>14,}")
    if found:
        print(f"found: {', '.join(found)}; the inputs are in {FOLDER}")
    return 1 if found else 0


def report(name: str, executions: int, output: str, found: list[str]) -> int:
    print(f"{name:24} {executions:>14,}{'   FOUND' if output else ''}", flush=True)
    if output:
        print(output, flush=True)
        found.append(name)
    return executions


def run_target(name: str, seconds: float) -> tuple[int, str]:
    """Return how often it was executed, and the end of the output if something was found."""
    argv = [sys.executable, "-m", "tests.fuzz.engine", name, str(seconds), str(FOLDER)]
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            argv, stdout=output, stderr=output, timeout=seconds + _STOP_SECONDS, check=False
        )
        output.seek(0)
        text = output.read()
    numbers = _EXECUTIONS.findall(text)
    return int(numbers[-1]) if numbers else 0, text[-3000:] if done.returncode else ""


def run_properties(seconds: float) -> tuple[dict[str, int], str]:
    """Try the properties once to see how long that takes, then as often as there is time for."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    counts, output = _properties(1.0)
    once = time.monotonic() - began
    effort = (seconds - once) / once
    if output or effort < 1:
        return counts, output
    more, output = _properties(effort)
    return {name: counts.get(name, 0) + more.get(name, 0) for name in counts | more}, output


def _properties(effort: float) -> tuple[dict[str, int], str]:
    counts = FOLDER / "executions.json"
    counts.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *_PYTEST],
        env={
            **os.environ,
            "KUBEPROXY_EFFORT": str(effort),
            "KUBEPROXY_FUZZ_COUNTS": str(counts.absolute()),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    executions: dict[str, int] = json.loads(counts.read_text()) if counts.exists() else {}
    return executions, done.stdout[-5000:] if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
