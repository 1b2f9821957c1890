"""What `kpctl bench` does, after its options are parsed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.markup import escape

from kpctl.bench.document import format_number, write_document
from kpctl.bench.growth import GrowthRow, mode_growth
from kpctl.bench.health import CASES, Figure, figures_table, measure
from kpctl.bench.lists import LISTED, list_bytes
from kpctl.bench.records import Measurement, Results, Size, read_results, write_results
from kpctl.bench.run import Options, Progress, run_benchmark
from kpctl.bench.show import growth_table, results_table
from kubeproxy.modes.registry import mode_names

Merge: TypeAlias = Callable[[Results, Results], Results]

QUICK_SIZES = (Size(200), Size(2000))


def check_growth(
    console: Console, modes: Sequence[str] = (), sizes: Sequence[Size] = QUICK_SIZES
) -> bool:
    """Run the quick variant. Return whether the work for a change is the same at all sizes.

    The bytes of the first lists must be few as well.
    """
    rows: list[GrowthRow] = []
    for mode in modes or mode_names():
        with console.status(f"counting what a change takes: {mode}"):
            rows += mode_growth(mode, sizes)
    console.print(growth_table(rows))
    grown = [sentence for row in rows for sentence in row.grown()]
    for sentence in grown:
        console.print(f"[red]{escape(sentence)}[/red]")
    if not grown:
        console.print("One change takes the same work in a small and in a large cluster.")
    with console.status("counting the bytes of the first lists"):
        lists = list_bytes(LISTED)
    console.print(escape(str(lists)), style="" if lists.is_met else "red")
    return not grown and lists.is_met


def measure_checks(console: Console, *, seconds: float) -> bool:
    """Measure what health checks cost. Return whether that is within the aim."""
    figures: list[Figure] = []
    for case in CASES:
        with console.status(f"health checks: {case.name}"):
            figures.append(measure(case, seconds))
    console.print(figures_table(figures))
    return all(each.is_met for each in figures)


def compare(
    console: Console, options: Options, output: Path, *, merge: Merge | None = None
) -> Results:
    """Run the side-by-side benchmark with progress, then write and show its results.

    `merge` puts what the output file holds already and the new results together.
    """
    with console.status("starting etcd and kube-apiserver") as status:

        def now(text: str) -> None:
            status.update(escape(text))

        def found(measured: Sequence[Measurement]) -> None:
            for one in measured:
                more = ">" if one.is_limit else ""
                value = f"{more}{format_number(one.value)} {one.unit}"
                text = f"{one.mode:9} {one.size!s:>10}  {one.program:9} {one.name}: {value}"
                console.print(escape(text), highlight=False)

        results = run_benchmark(options, Progress(now, found))
    if merge is not None and output.exists():
        results = merge(read_results(output), results)
    write_results(output, results)
    show(console, results)
    console.print(f"The records are in {output}.")
    return results


def show(console: Console, results: Results) -> None:
    console.print(results_table(results.records))
    for line in (line for found in results.figures for line in (*found.lines, found.problem)):
        console.print(escape(line), highlight=False)
    for note in results.notes:
        console.print(escape(note))


def document(console: Console, results: Results, folder: Path) -> None:
    for path in write_document(results, folder):
        console.print(f"wrote {path}")
