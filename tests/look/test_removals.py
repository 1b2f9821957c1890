"""Which Services an apply would take away: found by comments, else by where they are served."""

from __future__ import annotations

import pytest

from kpctl.look.removals import unnamed_services

NFT = 'element service-ips { 10.96.0.20 . tcp . 80 comment "shop/lb:http" : goto pick-1 }'
RULE = '-t nat -A KUBE-SERVICES -m comment --comment "shop/lb:http cluster IP" -d 10.96.0.20 -j X'
PLAIN = "-t nat -A KUBE-SEP-X -m comment --comment shop/lb:http -s 10.244.1.6 -j KUBE-MARK-MASQ"
BARE = "-t nat -A KUBE-SERVICES -m tcp -p tcp -d 10.96.0.20/32 --dport 80 -j KUBE-SVC-X"
BARE6 = "-t nat -A KUBE-SERVICES -m tcp -p tcp -d fd00::20/128 --dport 80 -j KUBE-SVC-X"
SERVER = "-A -t 10.96.0.20:80 -s rr"
REAL = "-a -t 10.96.0.20:80 -r 10.244.1.6:8080 -m -w 1"


@pytest.mark.parametrize("line", [NFT, RULE, PLAIN])
def test_a_name_in_a_comment_is_a_service(line: str) -> None:
    assert unnamed_services([line], (), ()) == ["shop/lb"]
    assert unnamed_services([line], ("shop/lb",), ()) == []


@pytest.mark.parametrize("line", [BARE, SERVER])
def test_without_a_name_the_place_counts(line: str) -> None:
    assert unnamed_services([line], (), ()) == ["the Service at 10.96.0.20:80"]
    assert unnamed_services([line], (), ("10.96.0.20:80",)) == []


def test_an_ipv6_place_is_written_as_ever() -> None:
    assert unnamed_services([BARE6], (), ("[fd00::20]:80",)) == []
    assert unnamed_services([BARE6], (), ()) == ["the Service at [fd00::20]:80"]


def test_an_endpoint_less_is_no_service_less() -> None:
    assert unnamed_services([REAL], (), ()) == []


@pytest.mark.parametrize(
    "line",
    [
        '-t nat -A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: last"',
        '-t filter -A KUBE-FORWARD -m comment --comment "from 10.0.0.0/8 and fd00::/64" -j ACCEPT',
        "chain nodeport-pick-1",
        "element cluster-ips { 10.96.0.20 }",
    ],
)
def test_what_belongs_to_no_service_is_not_asked_about(line: str) -> None:
    assert unnamed_services([line], (), ()) == []
