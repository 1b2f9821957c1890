"""`make reference`: write every page that is made by code."""

from __future__ import annotations

from pathlib import Path

from kpctl.cli import main as kpctl
from kpctl.completion.program import kube_proxy, of_click
from kpctl.demo.lab import read_topology
from kpctl.kubernetes.results import read_results
from scripts.docs import man, reference
from scripts.docs.cluster_picture import cluster_svg
from scripts.docs.e2e import e2e_page
from scripts.docs.inspection import inspection_page
from scripts.docs.kernels import kernels_page, read_kernel_results
from scripts.docs.learn import learn_pages

DOCS = Path(__file__).parents[2] / "docs"


def generated() -> dict[str, str]:
    """Every generated file below docs/, by its path there."""
    commands = of_click(kpctl, "kpctl")
    return {
        "reference/flags.md": reference.flags_page(),
        "reference/configuration.md": reference.configuration_page(),
        "reference/metrics.md": reference.metrics_page(),
        "reference/events.md": reference.events_page(),
        "reference/labels.md": reference.labels_page(),
        "reference/kpctl.md": reference.commands_page(commands),
        "reference/inspection.md": inspection_page(),
        "man/kube-proxy.8": man.kube_proxy_page(kube_proxy()),
        "man/kpctl.8": man.kpctl_page(commands),
        "e2e.md": e2e_page(read_results(DOCS / "e2e.json")),
        "kernels.md": kernels_page(read_kernel_results(DOCS / "kernels.json")),
        "learn/cluster.svg": cluster_svg(read_topology(None)),
        **{f"learn/{name}": text for name, text in learn_pages().items()},
    }


def write() -> None:
    """Write the files. Remove pages that are not made any more."""
    files = generated()
    for folder in ("reference", "man", "learn"):
        for path in (DOCS / folder).glob("*"):
            if str(path.relative_to(DOCS)) not in files:
                path.unlink()
    for name, text in files.items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
