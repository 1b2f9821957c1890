"""What a proxy wants in the kernel, as text that the tools can load: `kpctl render`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kpctl.snapshot.types import Snapshot
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.modes.base import SCAFFOLD, AnyFragment, Owner

_IPTABLES = {
    Family.IPV4: "iptables-restore --noflush",
    Family.IPV6: "ip6tables-restore --noflush",
}
_LOADERS: Mapping[str, Mapping[Family, str]] = {
    "nftables": dict.fromkeys(Family, "nft -f"),
    "iptables": _IPTABLES,
    "userspace": _IPTABLES,
}
"""What loads the text of one family. That of ipvs mode is for several tools."""


def rendered(
    snapshot: Snapshot,
    *,
    family: str | None = None,
    only: ServiceName | None = None,
    has_scaffold: bool = True,
) -> str:
    """Return the text, each family under a comment that says which it is."""
    found = _fragments(snapshot, family, only, has_scaffold=has_scaffold)
    return "\n".join(
        _head(snapshot, each) + snapshot.backends[each].describe(fragments)
        for each, fragments in found.items()
    )


def rendered_lines(
    snapshot: Snapshot,
    *,
    family: str | None = None,
    only: ServiceName | None = None,
    has_scaffold: bool = True,
) -> list[dict[str, object]]:
    """Return the same as data: what each service port wants, line by line."""
    found = _fragments(snapshot, family, only, has_scaffold=has_scaffold)
    return [
        {
            "ipFamily": each.value,
            "servicePort": None if owner == SCAFFOLD else owner.label,
            "protocol": None if owner == SCAFFOLD else owner.protocol.value,
            "lines": list(snapshot.backends[each].lines(fragments[owner])),
        }
        for each, fragments in found.items()
        for owner in sorted(fragments)
    ]


def _fragments(
    snapshot: Snapshot, family: str | None, only: ServiceName | None, *, has_scaffold: bool
) -> Mapping[Family, Mapping[Owner, AnyFragment]]:
    return {
        each: _chosen(pipeline.fragments(), only, has_scaffold=has_scaffold)
        for each, pipeline in snapshot.pipelines.items()
        if family is None or each.value.lower() == family
    }


def _head(snapshot: Snapshot, family: Family) -> str:
    loader = _LOADERS.get(snapshot.mode, {}).get(family)
    hint = f"; {loader} loads this part" if loader else ""
    return f"# {family.value}, {snapshot.mode} mode, node {snapshot.node}{hint}\n"


def _chosen(
    fragments: Mapping[Owner, AnyFragment], only: ServiceName | None, *, has_scaffold: bool
) -> Mapping[Owner, AnyFragment]:
    return {
        owner: fragment
        for owner, fragment in fragments.items()
        if (has_scaffold if owner == SCAFFOLD else only in (None, owner.service))
    }
