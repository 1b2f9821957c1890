"""Chains of ours that another program renamed."""

from __future__ import annotations

from kubeproxy.modes.iptables.rules.recognise import group

POOL, COPY, ENDPOINT = "KUBE-SVC-67NZLRHBNDSAWJRO", "KUBE-SVC-RENAMED", "KUBE-SEP-34ZZ2QFGO32YYXXO"
JUMP = f"-A {{chain}} -m comment --comment x -j {ENDPOINT}"


def test_a_renamed_chain_does_not_take_the_endpoints_of_the_one_that_is_there_again() -> None:
    """Otherwise removing it would try to remove a chain in use, and be refused for ever."""
    chains = {
        ENDPOINT: "",
        POOL: JUMP.format(chain=POOL),
        COPY: JUMP.format(chain=COPY),
    }
    assert group(chains) == {
        POOL: "67NZLRHBNDSAWJRO",
        ENDPOINT: "67NZLRHBNDSAWJRO",
        COPY: "RENAMED",
    }
