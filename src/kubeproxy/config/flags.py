"""The flags of kube-proxy, as a table to hold against upstream's documentation.

A row holds how the flag is spelled, where its value goes and whether it still counts when
`--config` is given. `path` names an attribute of the configuration. Rows without a path are used by
`load` and `command` directly. Parsing is in `parse`, the help text in `usage`.

A new extension flag is one row in `EXTENSION_FLAGS` and the one place that reads it by its name:
`extensions.is_on("nftables-localhost-nodeports")`.
"""

# ruff: noqa: E501 - a row of the table stays on one line, to be compared with the documentation

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kubeproxy.config import kinds
from kubeproxy.config.kinds import FlagKind, Value
from kubeproxy.go.duration import Duration

GENERAL = "General"
API_SERVER = "API server"
MODE = "Proxy mode"
NODE = "Node and addresses"
LOCAL = "Detection of local traffic"
CONNTRACK = "Connection tracking"
STATUS = "Health, metrics and debugging"
LOGGING = "Logging"
EXTENSIONS = "Extensions (not in Kubernetes' kube-proxy)"

_IGNORED = " This parameter is ignored if a config file is specified by --config."
_DEPRECATED = (
    "This flag is deprecated and will be removed in a future release. Please use {} instead."
)
_BUFFER = (
    "[Alpha] In {} format with split streams, collect this many bytes of info messages before "
    "writing them (512, 1k, 2Ki, 3M, 4Mi ...); 0 writes each at once. Needs the feature gate "
    "LoggingAlphaOptions."
)
_SPLIT = (
    "[Alpha] In {} format, write info messages to stdout and errors to stderr instead of "
    "everything to stderr. Needs the feature gate LoggingAlphaOptions."
)


class Flag(msgspec.Struct, frozen=True):
    """One row of the table."""

    name: str
    kind: FlagKind
    default: Value
    group: str
    help: str
    path: str = ""
    shorthand: str = ""
    deprecated: str = ""
    with_config: bool = False
    """Is the flag still honoured when a configuration file is given?"""

    @property
    def is_hidden(self) -> bool:
        """Deprecated flags still work, but help leaves them out."""
        return bool(self.deprecated)


def _flag(
    name: str,
    kind: FlagKind,
    group: str,
    help: str,
    *,
    path: str = "",
    default: Value | None = None,
    shorthand: str = "",
    deprecated: str = "",
    with_config: bool = False,
) -> Flag:
    value = kind.zero if default is None else default
    return Flag(name, kind, value, group, help, path, shorthand, deprecated, with_config)


def _seconds(seconds: float) -> Duration:
    return Duration.of_seconds(seconds)


# fmt: off
_GENERAL_FLAGS = (
    _flag("config", kinds.STRING, GENERAL, "The path to the configuration file.", with_config=True),
    _flag("write-config-to", kinds.STRING, GENERAL, "If set, write the effective configuration to this file and exit.", with_config=True),
    _flag("cleanup", kinds.BOOL, GENERAL, "If true, remove everything kube-proxy has put into the kernel, in every mode, and exit.", with_config=True),
    _flag("init-only", kinds.BOOL, GENERAL, "If true, do everything that needs full root privileges, and exit. Afterwards kube-proxy can run with CAP_NET_ADMIN alone.", with_config=True),
    _flag("feature-gates", kinds.BOOL_MAP, GENERAL, "Pairs of name=bool that switch experimental features. Options are:\n{gates}\n" + _IGNORED.strip(), path="feature_gates"),
    _flag("oom-score-adj", kinds.INT32, GENERAL, "The oom-score-adj value of the process, within [-1000, 1000]." + _IGNORED, path="oom_score_adj", default=-999),
    _flag("config-sync-period", kinds.DURATION, GENERAL, "How often objects from the API server are refreshed. Must be greater than 0.", path="config_sync_period", default=_seconds(900)),
    _flag("boot-id-file", kinds.STRING, GENERAL, "Comma-separated list of files to look for a boot id in. Accepted, without effect.", default="/proc/sys/kernel/random/boot_id"),
    _flag("machine-id-file", kinds.STRING, GENERAL, "Comma-separated list of files to look for a machine id in. Accepted, without effect.", default="/etc/machine-id,/var/lib/dbus/machine-id"),
    _flag("help", kinds.BOOL, GENERAL, "help for kube-proxy", shorthand="h", with_config=True),
    _flag("version", kinds.VERSION, GENERAL, "--version, --version=raw prints version information and quits; --version=vX.Y.Z... sets the reported version", default="false", with_config=True),
)

_API_FLAGS = (
    _flag("kubeconfig", kinds.STRING, API_SERVER, "Path to a kubeconfig file with address and credentials of the API server (--master overrides the address).", path="client_connection.kubeconfig"),
    _flag("master", kinds.STRING, API_SERVER, "The address of the Kubernetes API server (overrides any value in kubeconfig).", with_config=True),
    _flag("kube-api-content-type", kinds.STRING, API_SERVER, "Content type of requests sent to the API server.", path="client_connection.content_type", default="application/vnd.kubernetes.protobuf"),
    _flag("kube-api-qps", kinds.FLOAT32, API_SERVER, "Requests per second to the API server; negative means no limit.", path="client_connection.qps", default=5.0),
    _flag("kube-api-burst", kinds.INT32, API_SERVER, "Requests to the API server that may exceed the rate for a moment.", path="client_connection.burst", default=10),
)

_NODE_FLAGS = (
    _flag("hostname-override", kinds.STRING, NODE, "If non-empty, the name of the Node kube-proxy runs on; otherwise the host name.", with_config=True),
    _flag("bind-address", kinds.ADDRESS, NODE, "Overrides kube-proxy's idea of its node's primary IP. No socket is bound to it." + _IGNORED, path="bind_address", default="0.0.0.0"),
    _flag("nodeport-addresses", kinds.STRINGS, NODE, "CIDR ranges of the node addresses on which NodePorts are reachable, or 'primary' for the node's primary IPs. Unset: every local address (in nftables mode: primary)." + _IGNORED, path="node_port_addresses"),
)

_MODE_FLAGS = (
    _flag("proxy-mode", kinds.PROXY_MODE, MODE, "Which proxy mode to use: 'iptables' (default), 'ipvs' or 'nftables'; as an extension also 'userspace'." + _IGNORED, path="mode"),
    _flag("masquerade-all", kinds.BOOL, MODE, "SNAT all traffic sent via Service cluster IPs. May be required with some CNI plugins."),
    _flag("iptables-masquerade-bit", kinds.INT32, MODE, "In iptables or ipvs mode, the bit of the fwmark space that marks packets requiring SNAT, within [0, 31].", path="iptables.masquerade_bit", default=14),
    _flag("iptables-localhost-nodeports", kinds.BOOL, MODE, "If false, NodePorts are not reachable through localhost. (iptables mode and IPv4 only.)", path="iptables.localhost_node_ports", default=True),
    _flag("iptables-sync-period", kinds.DURATION, MODE, "How often rules are re-synchronised and cleaned up (e.g. '5s', '1m', '2h22m'), in iptables and nftables mode. Must be greater than 0.", default=_seconds(30)),
    _flag("iptables-min-sync-period", kinds.DURATION, MODE, "The minimum time between two rule syncs in iptables and nftables mode; 0 syncs on every change.", default=_seconds(1)),
    _flag("ipvs-sync-period", kinds.DURATION, MODE, "How often rules are re-synchronised and cleaned up (e.g. '5s', '1m', '2h22m'), in ipvs mode. Must be greater than 0.", default=_seconds(30)),
    _flag("ipvs-min-sync-period", kinds.DURATION, MODE, "The minimum time between two rule syncs in ipvs mode; 0 syncs on every change.", default=_seconds(1)),
    _flag("ipvs-scheduler", kinds.STRING, MODE, "The ipvs scheduler.", path="ipvs.scheduler"),
    _flag("ipvs-exclude-cidrs", kinds.STRINGS, MODE, "CIDRs of IPVS services that clean-up leaves alone.", path="ipvs.exclude_cidrs"),
    _flag("ipvs-strict-arp", kinds.BOOL, MODE, "Enable strict ARP by setting arp_ignore to 1 and arp_announce to 2.", path="ipvs.strict_arp"),
    _flag("ipvs-tcp-timeout", kinds.DURATION, MODE, "Timeout of idle IPVS TCP connections, 0 to leave as-is.", path="ipvs.tcp_timeout"),
    _flag("ipvs-tcpfin-timeout", kinds.DURATION, MODE, "Timeout of IPVS TCP connections after a FIN packet, 0 to leave as-is.", path="ipvs.tcp_fin_timeout"),
    _flag("ipvs-udp-timeout", kinds.DURATION, MODE, "Timeout of IPVS UDP packets, 0 to leave as-is.", path="ipvs.udp_timeout"),
)

_LOCAL_FLAGS = (
    _flag("detect-local-mode", kinds.LOCAL_MODE, LOCAL, "How to recognise traffic of local pods: ClusterCIDR (default), NodeCIDR, BridgeInterface or InterfaceNamePrefix." + _IGNORED, path="detect_local_mode"),
    _flag("cluster-cidr", kinds.STRING, LOCAL, "The CIDR of the cluster's pods, or a comma-separated dual-stack pair; used in mode ClusterCIDR." + _IGNORED),
    _flag("pod-bridge-interface", kinds.STRING, LOCAL, "In mode BridgeInterface: traffic from this bridge is local.", path="detect_local.bridge_interface"),
    _flag("pod-interface-name-prefix", kinds.STRING, LOCAL, "In mode InterfaceNamePrefix: traffic from interfaces with this name prefix is local.", path="detect_local.interface_name_prefix"),
)

_CONNTRACK_FLAGS = (
    _flag("conntrack-max-per-core", kinds.INT32, CONNTRACK, "Maximum number of NAT connections to track per CPU core (0 to leave the limit as-is and ignore conntrack-min).", path="conntrack.max_per_core", default=32768),
    _flag("conntrack-min", kinds.INT32, CONNTRACK, "Minimum number of conntrack entries, regardless of conntrack-max-per-core.", path="conntrack.min", default=131072),
    _flag("conntrack-tcp-be-liberal", kinds.BOOL, CONNTRACK, "Track TCP liberally by setting nf_conntrack_tcp_be_liberal to 1.", path="conntrack.tcp_be_liberal"),
    _flag("conntrack-tcp-timeout-established", kinds.DURATION, CONNTRACK, "Idle timeout of established TCP connections (0 to leave as-is).", path="conntrack.tcp_established_timeout", default=_seconds(86400)),
    _flag("conntrack-tcp-timeout-close-wait", kinds.DURATION, CONNTRACK, "Timeout of TCP connections in the CLOSE_WAIT state (0 to leave as-is).", path="conntrack.tcp_close_wait_timeout", default=_seconds(3600)),
    _flag("conntrack-udp-timeout", kinds.DURATION, CONNTRACK, "Idle timeout of UNREPLIED UDP connections (0 to leave as-is).", path="conntrack.udp_timeout"),
    _flag("conntrack-udp-timeout-stream", kinds.DURATION, CONNTRACK, "Idle timeout of ASSURED UDP connections (0 to leave as-is).", path="conntrack.udp_stream_timeout"),
)

_STATUS_FLAGS = (
    _flag("healthz-bind-address", kinds.ENDPOINT, STATUS, "IP address and port of the health check server." + _IGNORED, path="healthz_bind_address", default="0.0.0.0:10256"),
    _flag("metrics-bind-address", kinds.ENDPOINT, STATUS, "IP address and port of the metrics server (\"0.0.0.0:10249\" or \"[::]:10249\" for all interfaces)." + _IGNORED, path="metrics_bind_address", default="127.0.0.1:10249"),
    _flag("healthz-port", kinds.INT32, STATUS, "The port of the health check server. Use 0 to disable.", default=10256, deprecated=_DEPRECATED.format("--healthz-bind-address")),
    _flag("metrics-port", kinds.INT32, STATUS, "The port of the metrics server.", default=10249, deprecated=_DEPRECATED.format("--metrics-bind-address")),
    _flag("bind-address-hard-fail", kinds.BOOL, STATUS, "If true, failure to bind the health check or metrics port is fatal.", path="bind_address_hard_fail"),
    _flag("profiling", kinds.BOOL, STATUS, "If true, serve profiles on /debug/pprof of the metrics server." + _IGNORED, path="enable_profiling"),
    _flag("show-hidden-metrics-for-version", kinds.STRING, STATUS, "The previous minor version (<major>.<minor>) whose hidden metrics are shown." + _IGNORED, path="show_hidden_metrics_for_version"),
)

_LOGGING_FLAGS = (
    _flag("logging-format", kinds.STRING, LOGGING, "The log format: \"text\" or \"json\" (gated by LoggingBetaOptions).", path="logging.format", default="text", with_config=True),
    _flag("v", kinds.LEVEL, LOGGING, "number for the log level verbosity", path="logging.verbosity", shorthand="v", with_config=True),
    _flag("vmodule", kinds.VMODULE, LOGGING, "Verbosity of single modules, comma-separated (text format only).", path="logging.vmodule", with_config=True),
    _flag("log-flush-frequency", kinds.DURATION, LOGGING, "Maximum time between log flushes.", path="logging.flush_frequency", default=_seconds(5), with_config=True),
    _flag("log-text-split-stream", kinds.BOOL, LOGGING, _SPLIT.format("text"), path="logging.options.text.split_stream", with_config=True),
    _flag("log-text-info-buffer-size", kinds.QUANTITY, LOGGING, _BUFFER.format("text"), path="logging.options.text.info_buffer_size", with_config=True),
    _flag("log-json-split-stream", kinds.BOOL, LOGGING, _SPLIT.format("JSON"), path="logging.options.json.split_stream", with_config=True),
    _flag("log-json-info-buffer-size", kinds.QUANTITY, LOGGING, _BUFFER.format("JSON"), path="logging.options.json.info_buffer_size", with_config=True),
)

EXTENSION_FLAGS = (
    _flag("manifests", kinds.STRING, EXTENSIONS, "A file or directory of Service, EndpointSlice and Node manifests to serve from instead of an API server; changes are applied live.", with_config=True),
    _flag("health-check", kinds.STRING, EXTENSIONS, "With --manifests, how endpoints of all Services are checked that have no annotation kubeproxy/health-check of their own: 'tcp', 'http /path', 'https /path' or 'udp', then words like interval=10s; empty: not at all.", with_config=True),
    _flag("nftables-localhost-nodeports", kinds.BOOL, EXTENSIONS, "In nftables mode, make NodePorts reachable through 127.0.0.1.", with_config=True),
    _flag("ipvs-hostports-on-clusterips", kinds.BOOL, EXTENSIONS, "In ipvs mode, leave out the rule that rejects connections to the host's own ports on service addresses.", with_config=True),
    _flag("proxy-port-range", kinds.PORT_RANGE, EXTENSIONS, "In userspace mode, ports for the proxy's own listeners, as from-to or base+size; empty: any free port.", with_config=True),
    _flag("udp-timeout", kinds.DURATION, EXTENSIONS, "In userspace mode, how long an idle UDP client is remembered.", default=_seconds(0.25), with_config=True),
    _flag("xtables-lock-timeout", kinds.DURATION, EXTENSIONS, "How long to wait for another program that holds the iptables lock.", default=_seconds(5), with_config=True),
    _flag("iptables-variant", kinds.IPTABLES_VARIANT, EXTENSIONS, "Which iptables to program: 'nft', 'legacy', or 'auto' for the one the node uses: that with the kubelet's hint chain, else that with more rules, else the default.", default="auto", with_config=True),
    _flag("inspection-socket", kinds.STRING, EXTENSIONS, "The Unix socket on which kpctl asks this process what it does, readable by its own user only; empty: none.", default="/run/kube-proxy/kube-proxy.sock", with_config=True),
    _flag("wait-for-other-proxy", kinds.BOOL, EXTENSIONS, "While another kube-proxy runs in the same network namespace, write nothing to the kernel and wait until it ends. If false, report it and go on: each proxy then undoes what the other does.", default=True, with_config=True),
    _flag("service-events", kinds.BOOL, EXTENSIONS, "Record Kubernetes events on Services about what this node does with them: no local endpoint, topology hints ignored, an address that two Services claim, addresses that are refused.", with_config=True),
    _flag("service-metrics", kinds.SERIES, EXTENSIONS, "Count connections, bytes and refused packets per Service with series of their own for the first so many Services that have traffic; the others count together. Connections come from conntrack events; for refused packets nftables and ipvs mode have sets with counters then. 0: count nothing.", default=0, with_config=True),
    _flag("keep-privileges", kinds.BOOL, EXTENSIONS, "Keep all privileges after the start. By default the process gives up every capability its mode does not need, sets no_new_privs, and refuses itself system calls that no proxy needs.", with_config=True),
    _flag("endpoint-cidrs", kinds.CIDRS, EXTENSIONS, "Use only endpoints within these networks, of pods and of everything else that is to be reached through a Service, such as the API server; others are refused. Empty: all.", with_config=True),
    _flag("external-ip-cidrs", kinds.CIDRS, EXTENSIONS, "Serve only external IPs of Services within these networks; others are refused. Empty: all.", with_config=True),
    _flag("load-balancer-cidrs", kinds.CIDRS, EXTENSIONS, "Serve only load balancer addresses of Services within these networks; others are refused. Empty: all.", with_config=True),
    _flag("refused-node-ports", kinds.PORTS, EXTENSIONS, "Ports of this node's own addresses, or ranges of them, that are refused as endpoints, such as 10250,2379-2380.", with_config=True),
    _flag("config-restart-jitter", kinds.DURATION, EXTENSIONS, "The longest delay between a change of the configuration file and the restart it causes. Each proxy chooses its own at random, so that not all restart at once.", default=_seconds(30), with_config=True),
)
# fmt: on

UPSTREAM_FLAGS = (
    _GENERAL_FLAGS
    + _API_FLAGS
    + _NODE_FLAGS
    + _MODE_FLAGS
    + _LOCAL_FLAGS
    + _CONNTRACK_FLAGS
    + _STATUS_FLAGS
    + _LOGGING_FLAGS
)
ALL_FLAGS = UPSTREAM_FLAGS + EXTENSION_FLAGS
FLAGS = {flag.name: flag for flag in ALL_FLAGS}
SHORTHANDS = {flag.shorthand: flag for flag in ALL_FLAGS if flag.shorthand}


class Extensions(msgspec.Struct, frozen=True):
    """The settings upstream does not have, by flag name. One that was not given has its default.

    Asking for a name that is in no row is a mistake in the program and raises KeyError.
    """

    values: Mapping[str, Value] = {}

    def _value(self, name: str) -> Value:
        return self.values[name] if name in self.values else FLAGS[name].default

    def text(self, name: str) -> str:
        """The value of a flag that holds a text."""
        value = self._value(name)
        assert isinstance(value, str), name
        return value

    def number(self, name: str) -> int:
        """The value of a flag that holds a whole number."""
        value = self._value(name)
        assert isinstance(value, int), name
        return value

    def items(self, name: str) -> tuple[str, ...]:
        """The values of a flag that holds a list."""
        value = self._value(name)
        assert isinstance(value, tuple), name
        return tuple(map(str, value))

    def is_on(self, name: str) -> bool:
        """The value of a flag that is on or off."""
        return self._value(name) is True

    def texts(self) -> dict[str, str]:
        """Every flag with its value as it would be given on a command line."""
        return {flag.name: flag.kind.format(self._value(flag.name)) for flag in EXTENSION_FLAGS}

    def seconds(self, name: str) -> float:
        """The value of a flag that holds a duration."""
        value = self._value(name)
        assert isinstance(value, Duration), name
        return value.seconds
