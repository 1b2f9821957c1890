"""The chapters of "How a Service works": which flows belong to each, and an introduction.

A flow belongs to the chapter of the number that its file name begins with. Everything else on the
pages comes out of the flows themselves.
"""

from __future__ import annotations

import msgspec


class Chapter(msgspec.Struct, frozen=True):
    """One page: number of the flows, file name, title, and what a reader should know first."""

    number: str
    name: str
    title: str
    text: str


CHAPTERS = (
    Chapter(
        "01",
        "cluster-ip",
        "The cluster IP",
        "A Service has an address of its own, the cluster IP. No host has it and nothing listens "
        "on it. The node on which a packet starts replaces it by the address of one endpoint "
        "(DNAT) and remembers that for the connection; replies are translated back on the same "
        "node. Only the first packet of a connection meets the rules.",
    ),
    Chapter(
        "02",
        "hairpin",
        "A pod that talks to itself",
        "If a pod asks its own Service, it may be chosen itself. It would then receive a packet "
        "from its own address and answer without the node. So the node puts its own address in "
        "the packet (masquerading), and the reply comes back through it.",
    ),
    Chapter(
        "03",
        "no-endpoints",
        "Nothing behind a Service",
        "A client should learn at once that nothing serves it. A Service without endpoints "
        "rejects with an ICMP error; a client then fails within a millisecond, not after a "
        "minute.",
    ),
    Chapter(
        "04",
        "node-ports",
        "Node ports",
        "A node port makes a Service reachable at a port of every node, for clients outside the "
        "cluster. A node forwards also to endpoints of other nodes. Then it must see the replies: "
        "it masquerades, and the pod sees the node, not the client.",
    ),
    Chapter(
        "05",
        "load-balancers",
        "Load balancer addresses",
        "A load balancer outside the cluster delivers packets with its own address as destination "
        "to some node. The node treats that address like a cluster IP. Clients inside the cluster "
        "that use the address take a short cut: they never leave it.",
    ),
    Chapter(
        "06",
        "external-ips",
        "External IPs",
        "External IPs are addresses that you bring to a node by your own means: an address of the "
        "node itself, a route, VRRP, BGP. Traffic that arrives for one of them at a port of the "
        "Service goes to the Service.",
    ),
    Chapter(
        "07",
        "traffic-policies",
        "Traffic policies",
        "With the policy Local, traffic stays on the node it has reached. For external traffic "
        "this keeps the client's address, because no other node has to send the reply back. A "
        "node without an endpoint drops; a health check port tells the load balancer which nodes "
        "have one.",
    ),
    Chapter(
        "08",
        "session-affinity",
        "Session affinity",
        "With session affinity, connections of one client address go to the same endpoint for as "
        "long as it exists and connections keep coming. The kernel keeps that memory, so a "
        "restart of the proxy does not lose it.",
    ),
    Chapter(
        "09",
        "which-endpoints",
        "Which endpoints are used",
        "Ready endpoints are used. If there is none, those that are terminating but still serve "
        "are better than nothing. Hints keep traffic in a zone or on a node while every endpoint "
        "has one.",
    ),
    Chapter(
        "10",
        "udp",
        "UDP, which has no connections",
        "The kernel remembers a UDP flow by addresses and ports for as long as packets come. A "
        "client with a fixed port, such as a DNS server, could talk to an endpoint that is gone "
        "for ever. So flows that lead to the wrong place are forgotten when endpoints change.",
    ),
    Chapter(
        "11",
        "restarts",
        "Restarts and updates under load",
        "Rules stay in the kernel while the proxy is down, so traffic goes on. When it is back, it "
        "reads them and changes only what differs.",
    ),
    Chapter(
        "12",
        "masquerading",
        "Who is masqueraded",
        "A pod of the cluster is seen with its own address. Others that use a cluster IP are "
        "masqueraded. How the proxy tells them apart is the local traffic detection "
        "(`detectLocalMode`).",
    ),
    Chapter(
        "13",
        "neighbours",
        "With others on the same node",
        "Firewalls, CNI plugins and other modes write into the same kernel. The proxy changes "
        "what is its own and nothing else.",
    ),
    Chapter(
        "14",
        "more",
        "Host network, and many Services",
        "Endpoints may have a node's own address, and Services come and go all the time.",
    ),
)
