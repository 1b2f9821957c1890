"""The page of upstream's end-to-end tests, out of the results that `make test-e2e` keeps."""

from __future__ import annotations

import re

from kpctl.kubernetes.results import BY_DESIGN, Results, Run

_MARKS = {"passed": "✔", "failed": "✘", "skipped": "–"}
_HEAD = """# Upstream's end-to-end tests

Kubernetes tests its own kube-proxy with a suite of end-to-end tests. `make test-e2e MODE=nftables`
runs the same binary against [a real cluster](guides/cluster.md) with this program as kube-proxy:
the specs of `[sig-network]` about Services, conntrack, networking, kube-proxy, EndpointSlices, host
ports, traffic distribution and dual stack, and those that restart kube-proxy or remove its rules.
What needs a cloud, the Internet or SCTP is left out.

This page is made by that command. A spec is skipped when it says itself that it does not apply.

Where the host's kernel has no IPVS, nodes have kernels of their own (user-mode Linux, one processor
each), which is many times slower: `make test-e2e MODE=ipvs ARGUMENTS="--kernel=uml --nodes=2"`.

One spec depends on the load of the machine, whatever the kube-proxy: "should be able to connect to
other Pod from a terminating Pod" uses no Service. It deletes a pod as soon as its container has
started, and the pod is gone if its program had no time to install a handler of SIGTERM. It failed
once that way in nftables mode, at a load of 10 on two processors, and passed with this program and
with upstream's when run again.
"""
_NO_UPSTREAM = ("userspace",)
"""Modes that upstream's program has not got."""


def e2e_page(results: Results) -> str:
    """The page as Markdown."""
    ours = [run for run in results.runs if run.proxy == "ours"]
    parts = [_HEAD, _summary(results.runs), _failures(results), _repeated(ours), _specs(ours)]
    return "\n".join(part for part in parts if part)


def _summary(runs: list[Run]) -> str:
    every = {name for run in runs for name in run.specs}
    rows = [
        f"| {run.mode} | {_program(run)} | {run.count('passed')} | {run.count('failed')} "
        f"| {run.count('skipped')} | {len(every) - len(run.specs)} | {run.minutes:g} min "
        f"| {run.kubernetes} | {run.kernel} |"
        for run in runs
    ]
    head = (
        "| mode | kube-proxy | passed | failed | skipped | not run | took | Kubernetes | kernel |"
    )
    return "\n".join([head, "|---|---|--:|--:|--:|--:|--:|---|---|", *rows, "", *_notes(runs)])


def _notes(runs: list[Run]) -> list[str]:
    return [f"{run.mode}: {run.note}\n" for run in runs if run.note]


def _program(run: Run) -> str:
    return "this one" if run.proxy == "ours" else "upstream's"


def _failures(results: Results) -> str:
    """Specs that fail, with upstream's result in the same place beside them."""
    upstream = {
        (r.mode, name): s for r in results.runs if r.proxy != "ours" for name, s in r.specs.items()
    }
    rows = []
    for run in results.runs:
        for name, spec in sorted(run.specs.items()):
            if run.proxy == "ours" and spec.state == "failed":
                by_design = BY_DESIGN.get(run.mode, {}).get(name)
                reason = f"by design: {by_design}" if by_design else spec.reason
                theirs = upstream.get((run.mode, name))
                other = theirs.state if theirs else _without(run.mode)
                rows.append(f"| {run.mode} | {_escape(name)} | {other} | {_escape(reason)} |")
    if not rows:
        return "## Failures\n\nNone.\n"
    head = "| mode | spec | upstream's in the same place | why |"
    return "\n".join(["## Failures", "", head, "|---|---|---|---|", *rows, ""])


def _without(mode: str) -> str:
    return "has no such mode" if mode in _NO_UPSTREAM else "not run"


def _repeated(runs: list[Run]) -> str:
    """Specs that were run again, alone: nothing is hidden that way."""
    rows = [
        f"| {run.mode} | {_escape(name)} | {before} | {run.specs[name].state} |"
        for run in runs
        for name, before in sorted(run.repeated.items())
    ]
    if not rows:
        return ""
    words = "The times above are without these specs, which were run again later:"
    head = "| mode | spec | first | again |"
    return "\n".join(["## Run again", "", words, "", head, "|---|---|---|---|", *rows, ""])


def _specs(runs: list[Run]) -> str:
    names = sorted({name for run in runs for name in run.specs})
    head = "| spec | " + " | ".join(run.mode for run in runs) + " |"
    rule = "|---|" + ":-:|" * len(runs)
    rows = [
        f"| {_escape(name)} | " + " | ".join(_mark(r, name) for r in runs) + " |" for name in names
    ]
    legend = "✔ passed, ✘ failed, – skipped; empty: not run in this mode."
    return "\n".join(["## Every spec", "", legend, "", head, rule, *rows, ""])


def _mark(run: Run, name: str) -> str:
    spec = run.specs.get(name)
    return _MARKS[spec.state] if spec else ""


def _escape(text: str) -> str:
    """Text in a cell of a table: no line breaks, nothing that Markdown would take for its own."""
    flat = " ".join(text.split())
    return re.sub(r"([|<>\[\]*_`])", r"\\\1", flat)
