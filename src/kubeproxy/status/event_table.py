"""The Kubernetes events we record, as a table: reason, type, action, and what an operator does.

Reasons of upstream's events are upstream's. To add an event, write a row here and record it in one
place with the same words; a test compares the two.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kubeproxy.status.event_series import NORMAL, WARNING


class EventSpec(msgspec.Struct, frozen=True, gc=False):
    """One kind of event."""

    reason: str
    type: Literal["Normal", "Warning"]
    action: str
    regarding: Literal["Node", "Service"]
    meaning: str
    is_upstream: bool = True


EVENTS = (
    EventSpec("Starting", NORMAL, "StartKubeProxy", "Node", "kube-proxy starts to sync."),
    EventSpec(
        "FailedToStartProxierHealthcheck",
        WARNING,
        "StartKubeProxy",
        "Node",
        "The health server cannot listen. See --healthz-bind-address.",
    ),
    EventSpec(
        "FailedToStartMetricServer",
        WARNING,
        "StartKubeProxy",
        "Node",
        "The metrics server cannot listen. See --metrics-bind-address.",
    ),
    EventSpec(
        "FailedToStartServiceHealthcheck",
        WARNING,
        "Listen",
        "Service",
        "The healthCheckNodePort of the Service cannot be opened; another program holds it.",
    ),
    EventSpec(
        "FailedToProgramService",
        WARNING,
        "Sync",
        "Service",
        "The kernel refuses this Service. The others are programmed; this one is retried.",
        is_upstream=False,
    ),
    EventSpec(
        "NoLocalEndpoints",
        NORMAL,
        "Plan",
        "Service",
        "The last endpoint has left this node, or none was here, and a traffic policy is Local:"
        " what arrives here is dropped. Only with --service-events.",
        is_upstream=False,
    ),
    EventSpec(
        "HintsIgnored",
        NORMAL,
        "Plan",
        "Service",
        "Topology hints are not followed, for the reason in the note: all endpoints are used."
        " Only with --service-events.",
        is_upstream=False,
    ),
    EventSpec(
        "AddressConflict",
        WARNING,
        "Plan",
        "Service",
        "Another Service claims the same address and port, and wins. Give one of them another"
        " address. Recorded by nodes with an endpoint of this Service. Only with --service-events.",
        is_upstream=False,
    ),
    EventSpec(
        "AddressRefused",
        WARNING,
        "Plan",
        "Service",
        "Endpoints or addresses of the Service are not used, because of what they are (loopback,"
        " link-local, multicast, a node port of the proxy's own servers) or because of a flag"
        " (--endpoint-cidrs, --external-ip-cidrs, --load-balancer-cidrs, --refused-node-ports)."
        " Recorded by nodes with an endpoint of this Service. Only with --service-events.",
        is_upstream=False,
    ),
    EventSpec(
        "InvalidAnnotation",
        WARNING,
        "Plan",
        "Service",
        "An annotation of the Service or of one of its EndpointSlices cannot be understood, for the"
        " reason in the note; the default is used. Recorded by nodes with an endpoint of this"
        " Service. Only with --service-events.",
        is_upstream=False,
    ),
    EventSpec(
        "AlgorithmNotSupported",
        WARNING,
        "Plan",
        "Service",
        "The Service asks for an algorithm that the mode of this node does not have; the mode's"
        " default is used. Recorded by nodes with an endpoint of this Service. Only with"
        " --service-events.",
        is_upstream=False,
    ),
    EventSpec(
        "DrainingNotSupported",
        WARNING,
        "Plan",
        "Service",
        "The Service limits draining, and for a port of it that is not possible, for the reason in"
        " the note: open connections are kept. Recorded by nodes with an endpoint of this Service."
        " Only with --service-events.",
        is_upstream=False,
    ),
    EventSpec(
        "EndpointsUnhealthy",
        WARNING,
        "Plan",
        "Service",
        "Endpoints fail the health check of the Service, for the reasons in the note, and get no"
        " new connections. Recorded by nodes with an endpoint of this Service. Only with"
        " --service-events.",
        is_upstream=False,
    ),
    EventSpec(
        "AllEndpointsUnhealthy",
        WARNING,
        "Plan",
        "Service",
        "Every endpoint fails its health check, so all are used as if there were none. If they do"
        " work, the check is wrong, or this node cannot reach them. Recorded by nodes with an"
        " endpoint of this Service. Only with --service-events.",
        is_upstream=False,
    ),
    EventSpec(
        "RulesRepaired",
        WARNING,
        "Repair",
        "Node",
        "Another program changed our rules; they were repaired. The note has what and, where that"
        " is known, who. See kpctl drift.",
        is_upstream=False,
    ),
    EventSpec(
        "AnotherProxy",
        WARNING,
        "StartKubeProxy",
        "Node",
        "Another kube-proxy runs in the network namespace of this one, which waits for its end. If"
        " this is no rollout that starts new pods first, stop one of them.",
        is_upstream=False,
    ),
    EventSpec(
        "InvalidConfiguration",
        WARNING,
        "ReadConfiguration",
        "Node",
        "The configuration file changed to what cannot be used; the former one stays in force.",
        is_upstream=False,
    ),
)
