"""Matches that several modes write into their rules, in the words of iptables. Pure."""

from __future__ import annotations

from kubeproxy.facts.node import DetectorKind, LocalDetector


def from_local_pods(detector: LocalDetector) -> str:
    """The match for packets from pods of this node: `-s 10.0.0.0/8`, `-i br0` or `-i veth+`.

    A caller that wants the other packets writes `! ` in front. There is no such match for a
    detector that is not implemented (`DetectorKind.NONE`), so the caller asks it first.
    """
    if detector.kind is DetectorKind.CIDR:
        return f"-s {detector.value}"
    # iptables matches every interface whose name begins with the text in front of a final "+".
    plus = "+" if detector.kind is DetectorKind.INTERFACE_PREFIX else ""
    return f"-i {detector.value}{plus}"
