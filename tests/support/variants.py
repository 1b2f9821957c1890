"""In which families a flow runs in a kernel: both at once, unless more is asked for."""

from __future__ import annotations

import os

from kpctl.flows.flow import Flow

_ALL = os.environ.get("KUBEPROXY_VARIANTS") == "all"
_SINGLE_STACK = ("01-cluster-ip", "04-node-port", "05-load-balancer", "10-udp-backend-change")
"""Flows that also run in a cluster of one family, where nothing of the other may be missed."""


def variants(flow: Flow) -> tuple[str, ...]:
    """The variants of an ordinary run. KUBEPROXY_VARIANTS=all means every one of the flow."""
    return flow.variants if _ALL or flow.name in _SINGLE_STACK else flow.variants[-1:]
