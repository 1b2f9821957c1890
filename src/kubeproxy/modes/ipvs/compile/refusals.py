"""What a refused IPVS message means. Pure.

IPVS has no transactions, so each message is made forgiving by hand: what should be created and
exists is set instead, what should be set and is gone is created, what should go and is gone is
fine. This is what lets a batch be repeated, halved or cut short at any point.
"""

from __future__ import annotations

import errno

from kubeproxy.facts.address import family_of
from kubeproxy.kernel.ipvs import wire
from kubeproxy.modes.ipvs.items import VirtualServer

_SECOND_TRIES = {
    (wire.IPVS_CMD_NEW_SERVICE, errno.EEXIST): wire.IPVS_CMD_SET_SERVICE,
    (wire.IPVS_CMD_NEW_DEST, errno.EEXIST): wire.IPVS_CMD_SET_DEST,
    (wire.IPVS_CMD_SET_DEST, errno.ENOENT): wire.IPVS_CMD_NEW_DEST,
}
"""A refused command → the command that brings about the same."""

_HARMLESS = frozenset(
    {
        (wire.IPVS_CMD_DEL_SERVICE, errno.ESRCH),
        (wire.IPVS_CMD_DEL_DEST, errno.ENOENT),
        (wire.IPVS_CMD_DEL_DEST, errno.ESRCH),
    }
)
_OF_REAL_SERVERS = (wire.IPVS_CMD_NEW_DEST, wire.IPVS_CMD_SET_DEST, wire.IPVS_CMD_DEL_DEST)


def command_of(body: bytes) -> int:
    """The command of a generic netlink message: its first byte."""
    return body[0]


def second_try(body: bytes, number: int) -> bytes | None:
    """The message to send instead of one refused with this error number, if there is one."""
    command = _SECOND_TRIES.get((command_of(body), number))
    return None if command is None else bytes((command,)) + body[1:]


def is_harmless(body: bytes, number: int) -> bool:
    """Is there nothing left to do about a message refused with this error number?"""
    return (command_of(body), number) in _HARMLESS


def subject_of(server: VirtualServer, body: bytes) -> str:
    """What a message is about, for the text of an error."""
    subject = f"virtual server {server}"
    if command_of(body) not in _OF_REAL_SERVERS:
        return subject
    real = wire.parse_destination(body, family_of(server.address))
    return f"{subject}: real server {real.address} port {real.port}"
