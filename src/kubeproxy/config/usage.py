"""The help text: every flag that is not hidden, by group, ours in a group of their own.

The layout is upstream's. All wording of flags comes from the table in `flags`.
"""

from __future__ import annotations

from itertools import groupby

from kubeproxy.config.flags import ALL_FLAGS, Flag
from kubeproxy.config.gates import describe_gates
from kubeproxy.go.quoting import quote

DESCRIPTION = """\
The Kubernetes network proxy runs on each node. It makes the Services of the Kubernetes API
reachable there: traffic to a cluster IP, node port, external IP or load-balancer IP is forwarded
to one of the Service's endpoints (TCP, UDP and SCTP), by rules in the kernel. Without a cluster,
--manifests serves objects from files.
"""


def help_text() -> str:
    """Return the text of `--help`."""
    return f"{DESCRIPTION}\n{usage_text()}"


def usage_text() -> str:
    """Return the text printed for a wrong command line, before the error."""
    visible = [flag for flag in ALL_FLAGS if not flag.is_hidden]
    groups = [_group(name, list(flags)) for name, flags in groupby(visible, lambda f: f.group)]
    return "Usage:\n  kube-proxy [flags]\n\n" + "\n".join(groups)


def _group(name: str, flags: list[Flag]) -> str:
    heads = {flag.name: _head(flag) for flag in flags}
    width = max(map(len, heads.values())) + 3
    rows = (_row(heads[f.name].ljust(width), f) for f in sorted(flags, key=lambda f: f.name))
    return f"{name}:\n" + "".join(rows)


def _head(flag: Flag) -> str:
    short = f"-{flag.shorthand}, " if flag.shorthand else "    "
    kind = flag.kind.name
    # A flag that may stand alone shows its optional value attached: `--version version[=true]`.
    return f"  {short}--{flag.name}" + (f" {kind}" if kind else "")


def _row(head: str, flag: Flag) -> str:
    text = flag.help.replace("{gates}", "\n".join(describe_gates())) + _default(flag)
    first, *more = text.split("\n")
    return "\n".join([head + first, *(" " * len(head) + line for line in more)]) + "\n"


def _default(flag: Flag) -> str:
    if flag.default == flag.kind.zero:
        return ""
    text = flag.kind.format(flag.default)
    return f" (default {quote(text) if flag.kind.is_quoted else text})"
