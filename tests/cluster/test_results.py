"""Upstream's reports become results, and results a page."""

from __future__ import annotations

from pathlib import Path

import msgspec
from scripts.docs.e2e import e2e_page

from kpctl.kubernetes.results import (
    BY_DESIGN,
    Results,
    Run,
    Spec,
    read_reports,
    read_results,
    write_results,
)

REPORT = """<testsuites><testsuite name="e2e">
<testcase name="[BeforeSuite]" status="passed" time="1"/>
<testcase name="[It] [sig-network] Services should serve" status="passed" time="12.34"/>
<testcase name="[It] [sig-network] Services should fail" status="failed" time="3">
  <failure message="no | answer"/></testcase>
<testcase name="[It] [sig-network] Services need a cloud" status="skipped" time="1">
  <skipped message="skipped - only on a cloud"/></testcase>
<testcase name="[It] [sig-network] Services go on" status="interrupted" time="9">
  <error message="interrupted by user"/></testcase>
<testcase name="[It] [sig-node] Pods" status="skipped"><skipped message="skipped"/></testcase>
</testsuite></testsuites>"""


def run_of(specs: dict[str, Spec], *, proxy: str = "ours") -> Run:
    return Run("nftables", proxy, "v1", "6", 1.0, 6, specs)


def test_selected_specs_are_read_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "junit_01.xml").write_text(REPORT)
    assert read_reports(tmp_path) == {
        "Services should serve": Spec("passed", 12.3),
        "Services should fail": Spec("failed", 3.0, "no | answer"),
        "Services need a cloud": Spec("skipped", 1.0, "only on a cloud"),
    }


def test_a_run_replaces_the_one_of_its_mode_and_a_part_only_its_specs(tmp_path: Path) -> None:
    results = Results([run_of({"a": Spec("failed"), "b": Spec("passed")})])
    results.put(run_of({"a": Spec("passed")}), is_whole=False)
    assert results.runs[0].specs == {"a": Spec("passed"), "b": Spec("passed")}
    assert results.runs[0].repeated == {"a": "failed"}
    assert "| nftables | a | failed | passed |" in e2e_page(results)
    results.put(run_of({"c": Spec("passed")}))
    results.put(run_of({"c": Spec("passed")}, proxy="upstream"))
    write_results(tmp_path / "r.json", results)
    assert [sorted(run.specs) for run in read_results(tmp_path / "r.json").runs] == [["c"], ["c"]]


def test_a_run_may_be_made_of_parts() -> None:
    results = Results([run_of({"a": Spec("passed"), "b": Spec("passed")}, proxy="upstream")])
    results.put(run_of({"a": Spec("passed")}))
    assert "| nftables | this one | 1 | 0 | 0 | 1 | 1 min |" in e2e_page(results)
    results.put(run_of({"b": Spec("passed")}), is_whole=False)
    assert "| nftables | this one | 2 | 0 | 0 | 0 | 2 min |" in e2e_page(results)
    assert "Run again" not in e2e_page(results)


def test_the_page_says_how_a_run_came_about() -> None:
    run = msgspec.structs.replace(run_of({"a": Spec("passed")}), note="one of two was run")
    assert "\nnftables: one of two was run\n" in e2e_page(Results([run]))


def test_the_page_attributes_a_failure_by_upstreams_result() -> None:
    failed = {"Services [x] fail": Spec("failed", reason="no | answer")}
    results = Results([run_of(failed), run_of({"Services [x] fail": Spec("failed")}, proxy="up")])
    page = e2e_page(results)
    assert r"| nftables | Services \[x\] fail | failed | no \| answer |" in page
    assert r"| Services \[x\] fail | ✘ |" in page


def test_a_spec_that_cannot_hold_in_a_mode_is_no_failure_and_has_its_reason() -> None:
    (name, reason), *_ = BY_DESIGN["userspace"].items()
    specs = {name: Spec("failed", reason="no answer"), "Services": Spec("failed")}
    run = msgspec.structs.replace(run_of(specs), mode="userspace")
    assert set(run.failures()) == {"Services"}
    assert set(run_of(specs).failures()) == {name, "Services"}
    assert f"by design: {reason}" in e2e_page(Results([run]))
