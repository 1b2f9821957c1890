"""The socket against a real kernel; only reads, so no namespace is needed."""

import errno

import pytest

from kubeproxy.errors import Busy, Drifted, KernelError, Rejected
from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.socket import NETLINK_ROUTE, NetlinkSocket, kernel_error

RTM_GETLINK = 18
IFLA_IFNAME = 3


def test_a_dump_lists_the_loopback_interface() -> None:
    """Every network namespace has `lo`."""
    with NetlinkSocket(NETLINK_ROUTE) as route:
        links = route.dump(RTM_GETLINK, b"\0" * 16, what="list links")
    names = {codec.text(codec.parse_attrs(m.body, 16)[IFLA_IFNAME]) for m in links}
    assert "lo" in names


def test_a_request_returns_its_answer_and_consumes_the_acknowledgement() -> None:
    """Two requests in a row do not see each other's replies."""
    body = b"\0" * 16 + codec.attr_str(IFLA_IFNAME, "lo")
    with NetlinkSocket(NETLINK_ROUTE) as route:
        first = route.request(RTM_GETLINK, body, what="link lo")
        second = route.request(RTM_GETLINK, body, what="link lo")
    assert len(first) == len(second) == 1


def test_a_refusal_names_what_was_asked() -> None:
    """The exception says which request failed, in the operator's words."""
    body = b"\0" * 16 + codec.attr_str(IFLA_IFNAME, "no-such-link")
    with NetlinkSocket(NETLINK_ROUTE) as route, pytest.raises(KernelError, match="link no-such"):
        route.request(RTM_GETLINK, body, what="link no-such-link")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EBUSY, Drifted),
        (errno.ENOENT, Drifted),
        (errno.EINVAL, Rejected),
        (errno.EAGAIN, Busy),
    ],
)
def test_error_numbers_map_to_what_the_engine_does_next(
    number: int, kind: type[KernelError]
) -> None:
    """Busy is retried, drift is re-read, a rejection is split."""
    assert type(kernel_error(number, "x")) is kind


def test_missing_permission_names_the_remedy() -> None:
    """An operator should read which capability is missing."""
    assert "CAP_NET_ADMIN" in str(kernel_error(errno.EPERM, "add table"))


def test_sequence_numbers_never_repeat_within_reach() -> None:
    """A batch reserves a run of numbers; the next run starts after it."""
    with NetlinkSocket(NETLINK_ROUTE) as route:
        first = route.reserve(10)
        assert route.reserve(1) == first + 10
