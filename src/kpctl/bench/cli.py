"""The options of `kpctl bench`. The work and its heavy imports are in `command`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kpctl.bench.records import Size

_DEFAULT_OUTPUT = "bench-results.json"
PARTS = ("control", "data", "conntrack", "fleet", "promise", "scale", "modes", "balance", "health")


def _sizes(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[Size, ...]:
    from kpctl.bench.records import parse_size

    try:
        return tuple(parse_size(text) for text in texts)
    except ValueError as error:
        raise click.BadParameter(str(error), context, option) from error


@click.command()
@click.option("--quick", is_flag=True, help="only count; fail if work grows with the cluster")
@click.option("--size", "sizes", callback=_sizes, multiple=True, help="5k or 5kx50; repeatable")
@click.option("--mode", "modes", multiple=True, help="repeatable (default: all that can)")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="repeatable")
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--samples", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--budget", type=float, default=120.0, show_default=True, help="minutes")
@click.option("--cutoff", type=float, default=60.0, show_default=True, help="seconds per point")
@click.option("--churn", type=float, default=10.0, show_default=True, help="seconds of churn")
@click.option("--flows", type=int, default=500_000, show_default=True, help="in the table")
@click.option("--proxies", type=click.IntRange(1, 100), default=50, show_default=True, help="fleet")
@click.option("--upstream-up-to", type=int, default=1_000_000, help="services")
@click.option("--real-up-to", type=int, default=20_000, help="services from a real API server")
@click.option("--output", type=click.Path(path_type=Path), default=_DEFAULT_OUTPUT)
@click.option("--keep", is_flag=True, help="pool with what the output file holds")
@click.option("--renew", is_flag=True, help="keep it, but replace what is measured again")
@click.option("--docs", type=click.Path(path_type=Path), help="write benchmarks.md and charts here")
@click.option("--from", "source", type=click.Path(exists=True, path_type=Path), help="old results")
def bench(
    *,
    quick: bool,
    sizes: tuple[Size, ...],
    modes: tuple[str, ...],
    parts: tuple[str, ...],
    rounds: int,
    samples: int,
    budget: float,
    cutoff: float,
    churn: float,
    flows: int,
    proxies: int,
    upstream_up_to: int,
    real_up_to: int,
    output: Path,
    keep: bool,
    renew: bool,
    docs: Path | None,
    source: Path | None,
) -> None:
    """Measure this program and upstream's kube-proxy side by side.

    Everything happens in network namespaces made for it; needs root, Go (once, to build upstream's
    programs) and time. With --quick it needs none of these and only counts.
    """
    from rich.console import Console

    from kpctl.bench import command, records
    from kpctl.bench.control import Limits
    from kpctl.bench.run import Options

    # A file has no width of its own, and the tables are some 150 characters wide.
    console = Console(width=None if sys.stdout.isatty() else 160)
    if quick:
        sys.exit(0 if command.check_growth(console, modes, sizes or command.QUICK_SIZES) else 1)
    if "health" in parts:
        is_met = command.measure_checks(console, seconds=churn)
        if set(parts) == {"health"}:
            sys.exit(0 if is_met else 1)
    if source:
        results = records.read_results(source)
        command.show(console, results)
    else:
        standard = Options()
        options = Options(
            sizes=sizes or standard.sizes,
            modes=modes or standard.modes,
            figures_of=modes,
            rounds=rounds,
            budget_seconds=budget * 60,
            upstream_services=upstream_up_to,
            real_services=real_up_to,
            limits=Limits(cutoff_seconds=cutoff, samples=samples, churn_seconds=churn),
            ipvs_sizes=sizes or standard.ipvs_sizes,
            parts=frozenset(parts) or standard.parts,
            proxies=proxies,
            flows=flows,
            command=shlex.join(["kpctl", *sys.argv[1:]]),
        )
        merge = records.renew if renew else records.merge if keep else None
        results = command.compare(console, options, output, merge=merge)
    if docs:
        command.document(console, results, docs)
