"""Reference pages out of the tables in the code: flags, configuration, metrics, events, labels.

Nothing is described here a second time, except fields of the configuration file that have no flag.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import msgspec

from kpctl.completion.program import Command, Option, Value, kube_proxy
from kubeproxy.api.objects import ANNOTATIONS, LABELS
from kubeproxy.config.flags import ALL_FLAGS, FLAGS
from kubeproxy.config.types import API_VERSION, KubeProxyConfiguration
from kubeproxy.config.write import config_document, format_config
from kubeproxy.status import metric_table
from kubeproxy.status.event_table import EVENTS
from kubeproxy.status.metric_table import MODES, MetricSpec
from scripts.docs.markdown import code, fence, page, prose, table

# Fields whose flag has no path in the table of flags, because its value needs more than storing.
_FLAG_OF_FIELD = {
    "clusterCIDR": "cluster-cidr",
    "hostnameOverride": "hostname-override",
    "portRange": "proxy-port-range",
    "iptables.masqueradeAll": "masquerade-all",
    "iptables.syncPeriod": "iptables-sync-period",
    "iptables.minSyncPeriod": "iptables-min-sync-period",
    "ipvs.syncPeriod": "ipvs-sync-period",
    "ipvs.minSyncPeriod": "ipvs-min-sync-period",
    "nftables.masqueradeAll": "masquerade-all",
    "nftables.syncPeriod": "iptables-sync-period",
    "nftables.minSyncPeriod": "iptables-min-sync-period",
}
_FIELDS_WITHOUT_FLAG = {
    "clientConnection.acceptContentTypes": "Content types accepted from the API server.",
    "nftables.masqueradeBit": "In nftables mode, the bit of the mark for packets requiring SNAT.",
    "windowsRunAsService": "Windows only; accepted, without effect.",
    "winkernel": "Windows only; accepted, without effect.",
}
_IGNORED = "This parameter is ignored if a config file is specified by --config."


def flags_page() -> str:
    """Every flag by group."""
    groups = groupby(kube_proxy().options, lambda option: option.group)
    parts = [f"## {name}\n\n{_flag_table(list(options))}" for name, options in groups]
    hidden = [[code(f"--{flag.name}"), flag.deprecated] for flag in ALL_FLAGS if flag.is_hidden]
    return page(
        "Flags of kube-proxy",
        "Names, defaults and meaning are upstream's; the last group is ours. With `--config`, the "
        "file decides: flags without a ✔ are ignored then. `kube-proxy --help` prints the same.",
        *parts,
        "## Deprecated\n\n" + table(("flag", ""), hidden),
    )


def _flag_table(options: list[Option]) -> str:
    rows = [
        (
            ", ".join(code(name) for name in option.names),
            code(option.value.name) if option.value else "",
            "✔" if FLAGS[option.names[0][2:]].with_config else "",
            _with_default(option.help.replace(_IGNORED, ""), option.default),
        )
        for option in options
    ]
    return table(("flag", "value", "✔", "meaning"), rows)


def _with_default(text: str, default: str) -> str:
    return f"{prose(text)} Default: {code(default)}." if default else prose(text)


def configuration_page() -> str:
    """Every field of the configuration file."""
    config = KubeProxyConfiguration()
    rows = list(_field_rows(config, config_document(config)))
    return page(
        "Configuration file",
        f"`--config=FILE` reads a `KubeProxyConfiguration` of `{API_VERSION}`, as upstream does. "
        "An unknown field is an error. A changed file is read again; what cannot be used is "
        "reported and the former configuration stays in force.",
        table(("field", "flag", "meaning"), rows),
        "## All defaults\n\n`kube-proxy --write-config-to=FILE` writes what is in force. "
        "With no option at all:",
        fence(format_config(config), "yaml"),
    )


def _field_rows(
    section: msgspec.Struct, shown: Mapping[str, object], names: str = "", path: str = ""
) -> Iterator[tuple[str, str, str]]:
    for field in msgspec.structs.fields(section):
        name, here = f"{names}{field.encode_name}", f"{path}{field.name}"
        value = getattr(section, field.name)
        below = shown.get(field.encode_name)
        if name not in _FIELDS_WITHOUT_FLAG and isinstance(below, dict) and below:
            yield from _field_rows(value, below, f"{name}.", f"{here}.")
        else:
            yield _field_row(name, here, below)


def _field_row(name: str, path: str, value: object) -> tuple[str, str, str]:
    flag = next((f.name for f in ALL_FLAGS if f.path == path), _FLAG_OF_FIELD.get(name, ""))
    # A field that nothing describes is a mistake here, and raises KeyError.
    meaning = FLAGS[flag].help if flag else _FIELDS_WITHOUT_FLAG[name]
    meaning = meaning.replace("Options are:\n{gates}\n", "").replace(_IGNORED, "")
    default = "" if isinstance(value, dict) else str(value).replace("True", "true")
    shown = default.replace("False", "false").replace("None", "null").replace("[]", "")
    return code(name), code(f"--{flag}" if flag else ""), _with_default(meaning, shown)


def metrics_page() -> str:
    """Every metric, upstream's and ours."""
    groups = {
        "Of the proxy": metric_table.UPSTREAM,
        "Packets counted by the kernel": metric_table.PACKET_COUNTERS,
        "Per Service, with --service-metrics": metric_table.SERVICE_COUNTERS,
        "Health checks of endpoints, if a Service asks for them": metric_table.HEALTH_CHECKS,
        "Ours": metric_table.EXTENSIONS,
        "Of the API client": metric_table.CLIENT,
        "Of the program": metric_table.GENERIC,
        "On /metrics/slis": metric_table.SLIS,
    }
    parts = [f"## {name}\n\n{_metric_table(rows)}" for name, rows in groups.items()]
    return page(
        "Metrics",
        "Served on `/metrics` of `--metrics-bind-address` (127.0.0.1:10249). Names, types, labels "
        "and buckets are upstream's, except for those under *Ours*. `process_*` metrics are there "
        "as usual. A metric exists only in the modes named.",
        *parts,
    )


def _metric_table(specs: tuple[MetricSpec, ...]) -> str:
    rows = [
        (
            code(spec.name),
            spec.kind,
            ", ".join(map(code, spec.labels)),
            "all" if spec.modes == MODES else ", ".join(spec.modes),
            prose(spec.help),
        )
        for spec in specs
    ]
    return table(("name", "type", "labels", "modes", "meaning"), rows)


def events_page() -> str:
    """Every Kubernetes event."""
    rows = [
        (code(e.reason), e.type, e.regarding, "upstream" if e.is_upstream else "ours", e.meaning)
        for e in EVENTS
    ]
    return page(
        "Events",
        "`kubectl get events` shows them, reported by `kube-proxy`. Events about a Node are in the "
        "namespace `default`. With `--manifests` there is no API server: they are only logged.",
        table(("reason", "type", "about", "from", "meaning"), rows),
    )


def labels_page() -> str:
    """Every label and annotation that is read."""
    rows = [(code(key.name), "label", key.kind, key.what) for key in LABELS]
    rows += [(code(key.name), "annotation", key.kind, key.what) for key in ANNOTATIONS]
    return page(
        "Labels and annotations",
        "All that are read. kube-proxy writes none. Those with the prefix `kubeproxy/` are ours: "
        "upstream's kube-proxy does not read them. Without them everything is as upstream does it. "
        "A value that cannot be understood is logged, shown by `kpctl explain`, and reported as an "
        "event `InvalidAnnotation`; then the default holds. [Balancing](../guides/balancing.md) "
        "has examples and what each mode can do.",
        table(("name", "kind", "on", "meaning"), rows),
        "A Node with the taint `ToBeDeletedByClusterAutoscaler`, or one that is being deleted, "
        "makes `/healthz` answer 503, so that load balancers send no new traffic to it.",
    )


def commands_page(program: Command) -> str:
    """Every command of kpctl."""
    parts = [_command(path, command) for path, command in program.walk()]
    return page("Commands of kpctl", *parts)


def _command(path: str, command: Command) -> str:
    words = [path]
    words += ["[OPTIONS]"] if command.options else []
    words += ["COMMAND"] if command.commands else []
    words += [_argument(value) for value in command.arguments]
    rows = [
        (
            ", ".join(code(name) for name in option.names),
            _option_value(option.value),
            _with_default(option.help, option.default),
        )
        for option in command.options
    ]
    below = table(
        ("command", "does"),
        [
            (f"[`{each.name}`](#{path}-{each.name})".replace(" ", "-"), prose(_summary(each.help)))
            for each in command.commands
        ],
    )
    parts = [f"## {path}", prose(command.help), f"Usage: {code(' '.join(words))}"]
    parts += [below] if command.commands else []
    parts += [table(("option", "value", "meaning"), rows)]
    parts += [fence(command.notes, "text")] if command.notes else []
    return "\n\n".join(parts)


def _argument(value: Value) -> str:
    return "|".join(value.words) or value.name


def _option_value(value: Value | None) -> str:
    if value is None:
        return ""
    if len(value.words) > 8:
        return code(value.name)
    return ", ".join(map(code, value.words)) or code(value.name)


def _summary(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())
