"""nf_tables messages as bytes: objects, transactions, and notifications, both directions. Pure.

Why: the kernel takes a whole transaction in one datagram, so a change to one service is one small
`sendmsg` and needs no tool. Promise: what is packed here parses back to equal values, and an
element can be found again from the offset at which the kernel refused a message. Leaves to others:
sending (`table`), and which rules there should be (the mode).

This is the door, under the name that it has in every family. Behind it there is a room for each
direction and a list of the kernel's numbers.
"""

# ruff: noqa: F403 - a door leads to everything behind it

from kubeproxy.kernel.nftables.fields import *
from kubeproxy.kernel.nftables.notifications import *
from kubeproxy.kernel.nftables.numbers import *
from kubeproxy.kernel.nftables.packing import *
from kubeproxy.kernel.nftables.parsing import *
from kubeproxy.kernel.nftables.transaction import *
from kubeproxy.kernel.nftables.values import *
