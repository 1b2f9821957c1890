"""Generic netlink: the message type of a family, found by its name.

Why: generic families get their number when their module is loaded. Promise: an absent family is
distinguished from a failed request. Leaves to others: loading the module.
"""

from __future__ import annotations

import errno

from kubeproxy.errors import KernelError
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.socket import NetlinkSocket

_GENL_ID_CTRL = 0x10
_CTRL_CMD_GETFAMILY = 3
_CTRL_ATTR_FAMILY_ID = 1
_CTRL_ATTR_FAMILY_NAME = 2


def format_family_request(name: str) -> bytes:
    """Body of the request for a family's number."""
    return codec.genl(_CTRL_CMD_GETFAMILY) + codec.attr_str(_CTRL_ATTR_FAMILY_NAME, name)


def parse_family(body: bytes) -> int:
    """The number in the reply."""
    return codec.u16(codec.parse_attrs(body, 4)[_CTRL_ATTR_FAMILY_ID])


def find_family(socket: NetlinkSocket, name: str) -> int | None:
    """Return the message type of this family, or None while the kernel does not have it."""
    try:
        replies = socket.request(
            _GENL_ID_CTRL, format_family_request(name), what=f"find netlink family {name}"
        )
    except KernelError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return parse_family(replies[0].body)
