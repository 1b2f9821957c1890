"""The Grafana dashboard: written by its script, on metrics that exist."""

from __future__ import annotations

import json
import re

from scripts.dashboard import OUTPUT, render

from kubeproxy.status import metric_table
from kubeproxy.status.metric_table import MetricSpec
from kubeproxy.status.process import ProcessCollector

NAME = re.compile(r"\b(?:kubeproxy|kubernetes|rest_client|process)_[a-z0-9_]+")


def published() -> dict[str, set[str]]:
    """The series of every metric, with their labels."""
    tables = (
        *(metric_table.UPSTREAM, metric_table.EXTENSIONS, metric_table.CLIENT),
        metric_table.SERVICE_COUNTERS,
    )
    samples = (s for metric in ProcessCollector().collect() for s in metric.samples)
    series: dict[str, set[str]] = {sample.name: set() for sample in samples}
    for spec in (spec for table in tables for spec in table):
        series |= {name: set(spec.labels) for name in names_of(spec)}
    return series


def names_of(spec: MetricSpec) -> list[str]:
    if spec.kind == "histogram":
        return [f"{spec.name}_{part}" for part in ("bucket", "sum", "count")]
    return [spec.name]


def queries() -> list[str]:
    tree = json.loads(OUTPUT.read_text())
    panels = [p for p in tree["panels"] if p["type"] != "row"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    variables = [v["query"]["query"] for v in tree["templating"]["list"] if v["type"] == "query"]
    return asked + variables


def test_the_file_is_what_the_script_writes() -> None:
    assert OUTPUT.read_text() == render()


def test_every_query_names_metrics_that_exist() -> None:
    series = published()
    for query in queries():
        names = NAME.findall(query)
        assert names, query
        assert set(names) <= series.keys(), query


def test_every_query_groups_by_labels_that_exist() -> None:
    scraped = {"job", "instance", "le"}
    series = published()
    for query in queries():
        for labels in re.findall(r"by \(([a-z_, ]+)\)", query):
            for name in NAME.findall(query):
                assert set(labels.split(", ")) <= series[name] | scraped, query


def test_no_two_panels_overlap() -> None:
    places = [p["gridPos"] for p in json.loads(OUTPUT.read_text())["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
