"""What rendering depends on beside facts: options, and what host and tools were found to have."""

from __future__ import annotations

from msgspec import Struct

from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts
from kubeproxy.modes.base import ModeOptions


class Features(Struct, frozen=True, gc=False):
    """What tools and kernel can do; the defaults are a current host's."""

    has_random_fully: bool = True
    has_invalid_counter: bool = True
    has_localhost_counter: bool = True
    is_tcp_liberal: bool = False


class Settings(Struct, frozen=True, gc=False):
    """One family's constants of rendering."""

    family: Family
    mark: str
    localhost_node_ports: bool
    features: Features = Features()

    def serves_localhost(self, node: NodeFacts) -> bool:
        """Are node ports reachable at 127.0.0.0/8?"""
        return (
            self.localhost_node_ports
            and self.family is Family.IPV4
            and node.node_ports_include_ipv4_loopback
        )


def settings_of(family: Family, options: ModeOptions, features: Features) -> Settings:
    return Settings(
        family=family,
        mark=options.masquerade_mark_text,
        localhost_node_ports=options.localhost_node_ports,
        features=features,
    )
