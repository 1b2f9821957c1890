"""The items of the iptables mode: exactly those of `modes.netfilter`, none of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from kubeproxy.modes.netfilter.items import RuleItem, RuleValue

Item: TypeAlias = RuleItem
Value: TypeAlias = RuleValue
Fragment: TypeAlias = Mapping[Item, Value]
