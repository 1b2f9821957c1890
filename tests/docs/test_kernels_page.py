"""Results of tests in other kernels are kept test by test, and counted on a page."""

from __future__ import annotations

from pathlib import Path

from scripts.docs.kernels import (
    KernelResults,
    Outcome,
    kernels_page,
    read_kernel_results,
    write_kernel_results,
)

EARLIER, LATER = "2026-01-01", "2026-01-02"


def test_a_later_run_of_a_part_replaces_its_results_only(tmp_path: Path) -> None:
    results = KernelResults()
    results.put("6.1.0-55", "flows", "ipvs", "01-a", Outcome("failed", EARLIER))
    results.put("6.1.0-55", "flows", "ipvs", "02-b", Outcome("passed", EARLIER))
    write_kernel_results(tmp_path / "kept", results)
    results = read_kernel_results(tmp_path / "kept")
    assert "- 6.1.0-55, flows, ipvs: `01-a`" in kernels_page(results)
    results.put("6.1.0-55", "flows", "ipvs", "01-a", Outcome("passed", LATER))
    page = kernels_page(results)
    assert f"| 6.1.0-55 | flows | ipvs | 2 | 0 | {LATER} |" in page
    assert "None." in page


def test_kernels_are_listed_from_the_oldest() -> None:
    results = KernelResults()
    for kernel in ("6.12.1", "6.1.0", "5.10.0"):
        results.put(kernel, "flows", "ipvs", "01-a", Outcome("passed", EARLIER))
    page = kernels_page(results)
    assert page.index("| 5.10.0 |") < page.index("| 6.1.0 |") < page.index("| 6.12.1 |")


def test_changes_of_mode_are_listed_with_their_connections(tmp_path: Path) -> None:
    results = KernelResults()
    results.put("6.1.0", "switches", "ipvs", "nftables", Outcome("passed", EARLIER, 2374))
    results.put("6.1.0", "switches", "ipvs", "userspace", Outcome("passed", EARLIER))
    results.put("6.1.0", "switches", "ipvs", "iptables", Outcome("failed", EARLIER, 17))
    write_kernel_results(tmp_path / "kept", results)
    _, _, listed = kernels_page(read_kernel_results(tmp_path / "kept")).partition("under load\n")
    assert "| 6.1.0 | nftables | ipvs | 2374 |" in listed
    assert "| 17 |" not in listed
    assert "| userspace | ipvs |" not in listed
