"""The table upstream's nftables mode would write for plain cluster IP services, as nft text.

It has one chain and one anonymous map for each service port. Our layout is measured against it. Of
the static parts it has those that every packet to a service passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from kubeproxy.modes.nftables.names import base_name

SETS = """\
	set cluster-ips { type ipv4_addr; comment "Active ClusterIPs"; }
	set hairpin-connections {
		type ipv4_addr . ipv4_addr . inet_proto . inet_service
		comment "service hairpin connections"
	}
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map service-nodeports { type inet_proto . inet_service : verdict; }
"""

CHAINS = """\
	chain reject-chain { reject; }
	chain services {
		ip daddr . meta l4proto . th dport vmap @service-ips
		fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @service-nodeports
	}
	chain masquerading {
		mark and 0x4000 != 0 mark set mark xor 0x4000 masquerade fully-random
		ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade
	}
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
"""


class PlainService(Struct, frozen=True, gc=False):
    """A cluster IP with one TCP port."""

    namespace: str
    name: str
    address: str
    port: int
    endpoints: tuple[tuple[str, int], ...]

    @property
    def chain(self) -> str:
        return "service-" + base_name(f"{self.namespace}/{self.name}/tcp/http")


def upstream_table(services: Sequence[PlainService]) -> str:
    """The whole table, to be loaded with `nft -f`."""
    return "".join(
        (
            "table ip kube-proxy {\n",
            SETS,
            CHAINS,
            *(_chain(service) for service in services),
            "}\n",
            *_elements("cluster-ips", (service.address for service in services)),
            *_elements("service-ips", (_dispatch(service) for service in services)),
        )
    )


def _chain(service: PlainService) -> str:
    choices = ", ".join(
        f"{index} : {address} . {port}" for index, (address, port) in enumerate(service.endpoints)
    )
    count = len(service.endpoints)
    return (
        f"\tchain {service.chain} {{\n"
        f"\t\tmeta l4proto tcp dnat ip addr . port to numgen random mod {count}"
        f" map {{ {choices} }}\n\t}}\n"
    )


def _dispatch(service: PlainService) -> str:
    return f"{service.address} . tcp . {service.port} : goto {service.chain}"


def _elements(name: str, elements: Iterable[str]) -> Iterator[str]:
    listed = ", ".join(elements)
    if listed:
        yield f"add element ip kube-proxy {name} {{ {listed} }}\n"
