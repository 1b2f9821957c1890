"""Writes the Grafana dashboard of the chart: python scripts/dashboard.py.

The panels are the table below; the rest is what Grafana wants around them. Which metrics exist is
the matter of `kubeproxy.status.metric_table`; a test compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

OUTPUT = Path(__file__).parent.parent / "deploy/chart/files/dashboard.json"
NODES = '{job="$job", instance=~"$instance"}'
WIDTH, HEIGHT, COLUMNS = 8, 7, 3


class Panel(NamedTuple):
    """One graph: its title, what it means, its unit, and queries with the names of their lines."""

    title: str
    help: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def quantile(share: float, metric: str) -> str:
    return (
        f"histogram_quantile({share}, sum by (le) (rate({metric}_bucket{NODES}[$__rate_interval])))"
    )


def rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{NODES}[$__rate_interval]))"


def total(metric: str, by: str) -> str:
    return f"sum by ({by}) ({metric}{NODES})"


def quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple((quantile(share, metric), f"p{share * 100:g}") for share in (0.5, 0.9, 0.99))


PROGRAMMING = "kubeproxy_network_programming_duration_seconds"
SYNC = "kubeproxy_sync_proxy_rules_duration_seconds"
CHANGES = "kubeproxy_sync_proxy_rules"
REFUSED = "kubeproxy_service_refused_packets_total"
SECTIONS: dict[str, tuple[Panel, ...]] = {
    "Is it keeping up?": (
        Panel(
            "Time to program an endpoint",
            "From the change of an endpoint to the rules that reflect it",
            "s",
            quantiles(PROGRAMMING),
        ),
        Panel(
            "Since the last successful sync",
            "Grows while nothing changes; it is a problem only together with pending changes",
            "s",
            (
                (
                    f"time() - max by (instance) ({CHANGES}_last_timestamp_seconds{NODES})",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Changes not yet in the rules",
            "Should fall back to 0",
            "short",
            (
                (
                    total(f"{CHANGES}_endpoint_changes_pending", "instance"),
                    "endpoints {{instance}}",
                ),
                (total(f"{CHANGES}_service_changes_pending", "instance"), "services {{instance}}"),
            ),
        ),
    ),
    "What does it do?": (
        Panel("Duration of a sync", "One round of changes to the kernel", "s", quantiles(SYNC)),
        Panel(
            "Changes seen",
            "Events of the API server that changed something",
            "ops",
            (
                (rate(f"{CHANGES}_endpoint_changes_total", "job"), "endpoints"),
                (rate(f"{CHANGES}_service_changes_total", "job"), "services"),
            ),
        ),
        Panel(
            "Stale flows removed",
            "Connection tracking entries of UDP endpoints that are gone",
            "ops",
            (
                (
                    rate("kubeproxy_conntrack_reconciler_deleted_entries_total", "ip_family"),
                    "{{ip_family}}",
                ),
            ),
        ),
    ),
    "What is wrong?": (
        Panel(
            "Failed syncs",
            "By mode: each is retried",
            "ops",
            tuple(
                (rate(name, "instance"), f"{label} {{{{instance}}}}")
                for name, label in (
                    (f"{CHANGES}_nftables_sync_failures_total", "nftables"),
                    (f"{CHANGES}_iptables_restore_failures_total", "iptables"),
                    ("kubeproxy_sync_batch_failures_total", "batches"),
                )
            ),
        ),
        Panel(
            "Services the kernel refuses, objects that cannot be used, stale flows",
            "The Services have an event that says why; the log names the objects and the reason",
            "short",
            (
                (total("kubeproxy_refused_service_ports", "instance"), "refused {{instance}}"),
                (total("kubeproxy_rejected_objects_total", "kind"), "rejected {{kind}}"),
                (total("kubeproxy_conntrack_owed_service_ports", "instance"), "flows {{instance}}"),
            ),
        ),
        Panel(
            "Rules changed by another program",
            "Found and repaired; another firewall may be flushing them",
            "ops",
            ((rate("kubeproxy_drift_repairs_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Local policy without local endpoints",
            "Services whose traffic on the node is dropped",
            "short",
            (
                (
                    total(f"{CHANGES}_no_local_endpoints_total", "traffic_policy"),
                    "{{traffic_policy}}",
                ),
            ),
        ),
        Panel(
            "Probes answered",
            "503 takes a node out of load balancers (healthz) or restarts the pod (livez)",
            "ops",
            (
                (rate("kubeproxy_proxy_healthz_total", "code"), "healthz {{code}}"),
                (rate("kubeproxy_proxy_livez_total", "code"), "livez {{code}}"),
            ),
        ),
        Panel(
            "Configuration in use",
            "0: the file has changed to what cannot be used, and the old one goes on",
            "short",
            ((total("kubeproxy_config_last_reload_successful", "instance"), "{{instance}}"),),
        ),
    ),
    "Who uses it? (with --service-metrics)": (
        Panel(
            "New connections by Service",
            "Those with most; the Services beyond the limit count together as other",
            "ops",
            (
                (
                    f"topk(10, {rate('kubeproxy_service_connections_total', 'namespace, name')})",
                    "{{namespace}}/{{name}}",
                ),
            ),
        ),
        Panel(
            "Bytes by Service",
            "Of connections that have ended; the kernel counts them if nf_conntrack_acct is 1",
            "Bps",
            (
                (
                    f"topk(10, {rate('kubeproxy_service_bytes_total', 'namespace, name')})",
                    "{{namespace}}/{{name}}",
                ),
            ),
        ),
        Panel(
            "Packets refused by Service",
            "Rejected: no endpoint at all. Dropped: none on the node, or a forbidden source",
            "ops",
            (
                (
                    f"topk(10, {rate(REFUSED, 'namespace, name, action, reason')})",
                    "{{action}} {{namespace}}/{{name}} {{reason}}",
                ),
            ),
        ),
    ),
    "What does it cost?": (
        Panel(
            "Requests to the API server",
            "By status",
            "ops",
            ((rate("rest_client_requests_total", "code"), "{{code}}"),),
        ),
        Panel(
            "Memory",
            "Resident",
            "bytes",
            ((total("process_resident_memory_bytes", "instance"), "{{instance}}"),),
        ),
        Panel(
            "CPU",
            "Cores in use",
            "short",
            ((rate("process_cpu_seconds_total", "instance"), "{{instance}}"),),
        ),
    ),
}


def render_panel(panel: Panel, number: int, x: int, y: int) -> dict[str, object]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": {"x": x * WIDTH, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend}
            for i, (expr, legend) in enumerate(panel.queries)
        ],
    }


def render_panels() -> list[dict[str, object]]:
    panels: list[dict[str, object]] = []
    y = 0
    for title, section in SECTIONS.items():
        place = {"x": 0, "y": y, "w": WIDTH * COLUMNS, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place})
        y += 1
        for start in range(0, len(section), COLUMNS):
            for x, panel in enumerate(section[start : start + COLUMNS]):
                panels.append(render_panel(panel, len(panels) + 1, x, y))
            y += HEIGHT
    return panels


def variable(name: str, label: str) -> dict[str, object]:
    query = f"label_values({CHANGES}_last_timestamp_seconds, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": name == "instance",
        "multi": name == "instance",
    }


def render() -> str:
    source = {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"}
    tree = {
        "title": "kube-proxy",
        "uid": "kubeproxy",
        "tags": ["kubernetes", "kube-proxy"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [source, variable("job", "Job"), variable("instance", "Node")],
        },
        "panels": render_panels(),
    }
    return json.dumps(tree, indent=1) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(render())
