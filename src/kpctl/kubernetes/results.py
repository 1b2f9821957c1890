"""Results of upstream's tests as values: read from its reports, kept in a file of ours."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec

_PROXY_IS_CLIENT = "a pod sees the node that carries the connection, not the client"
BY_DESIGN = {
    "userspace": {
        "Services should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]": (
            _PROXY_IS_CLIENT
        ),
        "Services should support externalTrafficPolicy=Local for type=NodePort": _PROXY_IS_CLIENT,
        "Services should implement NodePort and HealthCheckNodePort correctly when "
        "ExternalTrafficPolicy changes": _PROXY_IS_CLIENT,
        "Services should fallback to local terminating endpoints when there are no ready "
        "endpoints with externalTrafficPolicy=Local": (
            "the spec wants a pod's connection to another node's port to fail. With clusterCIDR "
            "every pod counts as local to every node, in all modes, so the connection is "
            "forwarded; in other modes it fails only because the reply takes another way"
        ),
    },
}
"""By mode the specs that cannot hold in it, with the reason."""
_PREFIX = re.compile(r"^\[It\] (\[sig-network\] )?")


class Spec(msgspec.Struct, frozen=True):
    """What became of one test: passed, failed or skipped, and why."""

    state: str
    seconds: float = 0.0
    reason: str = ""


class Run(msgspec.Struct, frozen=True):
    """One run of the suite."""

    mode: str
    proxy: str
    kubernetes: str
    kernel: str
    minutes: float
    processes: int
    specs: dict[str, Spec]
    note: str = ""
    """How it came about, if not by one command from beginning to end."""
    repeated: dict[str, str] = {}
    """Specs whose result is that of a later, partial run, with the state they had before."""

    def count(self, state: str) -> int:
        return sum(spec.state == state for spec in self.specs.values())

    def failures(self) -> dict[str, Spec]:
        """Specs that failed and should not have."""
        expected = BY_DESIGN.get(self.mode, {})
        failed = {name: spec for name, spec in self.specs.items() if spec.state == "failed"}
        return {name: spec for name, spec in failed.items() if name not in expected}


class Results(msgspec.Struct):
    """All runs in a file, the last one of each mode and program."""

    runs: list[Run] = []

    def put(self, run: Run, *, is_whole: bool = True) -> None:
        """Replace the run of this mode and program; of a part of the suite, replace its specs."""
        same = [r for r in self.runs if (r.mode, r.proxy) == (run.mode, run.proxy)]
        others = [r for r in self.runs if r not in same]
        if same and not is_whole:
            run = _repeat(same[0], run)
        self.runs = sorted([*others, run], key=lambda r: (r.proxy, r.mode))


def _repeat(before: Run, part: Run) -> Run:
    """Take the results of a part into an earlier run, and keep what they were."""
    ran = {name: spec for name, spec in part.specs.items() if spec.state != "skipped"}
    was = {name: before.specs[name].state for name in ran if name in before.specs}
    is_more = not part.specs.keys() <= before.specs.keys()
    return msgspec.structs.replace(
        before,
        minutes=round(before.minutes + part.minutes * is_more, 1),
        specs={**before.specs, **part.specs},
        repeated={**was, **before.repeated},
    )


def read_results(path: Path) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else Results()


def write_results(path: Path, results: Results) -> None:
    encoded = msgspec.json.encode(results)
    path.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")


def read_reports(folder: Path) -> dict[str, Spec]:
    """Specs of all JUnit reports in a folder, without those that were not selected."""
    specs = {}
    for report in sorted(folder.glob("junit*.xml")):
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = case.get("name", "")
            spec = _read_case(case)
            if name.startswith("[It]") and spec is not None:
                specs[_PREFIX.sub("", name)] = spec
    return specs


def _read_case(case: ElementTree.Element) -> Spec | None:
    """One spec of a report. None for one that was not selected, or was interrupted."""
    if case.get("status") == "interrupted":
        return None
    seconds = round(float(case.get("time", "0")), 1)
    skipped, failed = case.find("skipped"), case.find("failure")
    failed = failed if failed is not None else case.find("error")
    if failed is not None:
        said = failed.get("message") or failed.text or ""
        return Spec("failed", seconds, " ".join(said.split())[:300])
    if skipped is None:
        return Spec("passed", seconds)
    _, dash, reason = skipped.get("message", "").partition(" - ")
    return Spec("skipped", seconds, reason[:200]) if dash else None
