"""Makes the corpus, as root: `python -m tests.fuzz.seeds`.

Messages of the kernel are recorded in a scratch network namespace. The rest is what the program and
its tests write. Inputs that were found by fuzzing are kept beside these, under a name that begins
with `found`.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from tests.fuzz.inputs import CORPUS
from tests.ipvs.test_ipvs_codec import DESTINATION_REPLY, SERVICE_REPLY, SET_REPLY
from tests.status.test_http_requests import CASES
from tests.support.builders import endpoint, endpoint_slice, service
from tests.support.conntrack_kit import flow
from tests.support.served import BALANCED, WEB
from tests.support.snapshots import held, status
from tests.support.watch_bytes import bookmark, line, page, raw

from kpctl.places.flows import insert_flows
from kpctl.places.scratch import scratch_namespace
from kubeproxy.facts.ids import Family, Protocol
from kubeproxy.inspection.types import History
from kubeproxy.kernel.conntrack import wire as conntrack
from kubeproxy.kernel.ipvs import wire as ipvs
from kubeproxy.kernel.netlink import codec
from kubeproxy.modes.userspace.carrier.messages import (
    CloseListener,
    LogMessage,
    Sync,
    SyncReply,
    format_frame,
)

GOLDEN = Path(__file__).parents[1] / "golden"
_NETFILTER, _ROUTE = 12, 0
_DUMP, _MULTI = 0x301, 2
RULES = """
table ip kube-proxy {
  comment "rules for kube-proxy"
  set cluster-ips {
    type ipv4_addr
    comment "Active ClusterIPs"
    elements = { 10.96.0.1 }
  }
  map service-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 10.96.0.1 . tcp . 80 comment "shop/web:http" : goto pick }
  }
  map pools {
    typeof ip daddr . numgen random mod 8 : ip daddr . tcp dport
    elements = { 10.96.0.1 . 0 : 10.244.1.5 . 8080 }
  }
  set seen {
    type ipv4_addr
    flags dynamic,timeout
    timeout 3h
  }
  chain pick {
    update @seen { ip saddr }
    counter meta l4proto tcp dnat to 10.244.1.5:8080
  }
  chain entry {
    type nat hook prerouting priority -100
    ip daddr . meta l4proto . th dport vmap @service-ips
    fib daddr type local tcp dport 30080 goto pick comment "a comment"
  }
  chain post {
    type nat hook postrouting priority 100
    meta mark & 0x4000 != 0 masquerade fully-random
  }
  chain refuse {
    type filter hook forward priority 0
    ip daddr 10.96.0.0/12 reject with icmp port-unreachable
  }
}
"""


class Recorded:
    """Datagrams of the kernel, one message each."""

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._socket.settimeout(2)

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        """Yield each message of a listing, with its header."""
        self._socket.send(codec.message(kind, _DUMP, 1, body))
        while True:
            data = self._socket.recv(1 << 20)
            for message in codec.iter_messages(data):
                yield codec.message(message.type, message.flags, message.seq, message.body)
                is_last = message.type in (codec.NLMSG_DONE, codec.NLMSG_ERROR)
                if is_last or not message.flags & _MULTI:
                    return


def kernel_messages() -> Iterator[tuple[str, str, bytes]]:
    """Target, name and bytes of what the kernel answers."""
    with scratch_namespace():
        subprocess.run(["nft", "-f", "-"], input=RULES.encode(), check=True)
        insert_flows([flow(("10.96.0.10", 80), ("10.244.1.5", 8080), protocol=Protocol.TCP)])
        subprocess.run("ip address add 192.0.2.1/24 dev lo", shell=True, check=True)
        netfilter, links = Recorded(_NETFILTER), Recorded(_ROUTE)
        for name, number in {"tables": 1, "chains": 4, "sets": 10}.items():
            for index, data in enumerate(netfilter.dump(0xA00 | number, codec.nfgen(2))):
                yield "nftables", f"{name}-{index}", data
        for index, data in enumerate(netfilter.dump(0xA07, codec.nfgen(2))):
            yield "nftables-rules", f"rules-{index}", data
        for name in ("cluster-ips", "service-ips", "pools"):
            body = codec.nfgen(2) + codec.attr_str(1, "kube-proxy") + codec.attr_str(2, name)
            for index, data in enumerate(netfilter.dump(0xA0D, body)):
                yield "nftables-rules", f"{name}-{index}", data
        for index, data in enumerate(netfilter.dump(0x101, codec.nfgen(2))):
            yield "conntrack", f"entry-{index}", data
        for name, kind in {"link": 18, "address": 22}.items():
            for index, data in enumerate(links.dump(kind, bytes(16))):
                yield "small-families", f"{name}-{index}", data[16:]
        body = codec.nfgen(16) + codec.attr_str(1, "x") + codec.attr_be64(2, 7)
        yield "small-families", "nfacct", body + codec.attr_be64(3, 99)


def other_messages() -> Iterator[tuple[str, str, bytes]]:
    yield "ipvs", "service", SERVICE_REPLY
    yield "ipvs", "destination", DESTINATION_REPLY
    yield "ipvs", "timeouts", ipvs.format_timeouts(ipvs.Timeouts(900, 120, 300))
    yield "ipset", "set", SET_REPLY
    yield "conntrack", "delete", conntrack.format_listing(Family.IPV4, Protocol.UDP)
    yield "netlink", "error", codec.message(codec.NLMSG_ERROR, 0x200, 1, b"\xfe\xff\xff\xff" * 8)
    yield "carrier", "sync", format_frame(Sync(7)) + format_frame(CloseListener(3))
    yield "carrier", "replies", format_frame(LogMessage("x", "ns/a")) + format_frame(SyncReply(7))


def responses() -> dict[str, bytes]:
    """Answers of an API server with each way to end a body."""
    start, zipped = b"HTTP/1.1 200 OK\r\n", gzip.compress(b'{"kind":"ServiceList"}', mtime=0)
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(zipped), zipped)
    return {
        "sized": start + b"Content-Length: 5\r\n\r\nhello",
        "chunked": start
        + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
        "gzip": start + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
        "endless": b"HTTP/1.0 403 Forbidden\r\nConnection: close\r\n\r\nno",
        "retry": b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
    }


def api_bytes() -> Iterator[tuple[str, str, bytes]]:
    events = (
        line("ADDED", raw("a")),
        line("MODIFIED", raw("a", version=2)),
        bookmark("5", ends=True),
        line("DELETED", raw("a", version=6)),
        line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}),
    )
    yield "watch", "events", b"\x10" + b"".join(events)
    for index, data in enumerate(events):
        yield "watch", f"event-{index}", b"\xff" + data
    for name, response in responses().items():
        yield "response", name, b"\x07" + response
    yield "list", "page", page(raw("a"), raw("b"), token="next")
    yield "list", "status", b'{"kind":"Status","code":403,"reason":"Forbidden","details":{}}'
    for name, document in objects_by_name().items():
        yield "objects", name, json.dumps(document).encode()
    yield "json-cutting", "deep", b'{"a":' + b"[" * 30 + b'"\\ud800"' + b"]" * 30 + b"}"
    yield (
        "credential",
        "token",
        json.dumps(
            {
                "kind": "ExecCredential",
                "apiVersion": "client.authentication.k8s.io/v1",
                "status": {"token": "t", "expirationTimestamp": "2030-01-01T00:00:00Z"},
            }
        ).encode(),
    )


def objects_by_name() -> Mapping[str, object]:
    import yaml

    found = [*yaml.safe_load_all(WEB), *yaml.safe_load_all(BALANCED)]
    address = {"type": "InternalIP", "address": "192.0.2.1"}
    zone = {"topology.kubernetes.io/zone": "a"}
    found.append(
        {
            "kind": "Node",
            "metadata": {"name": "n", "labels": zone, "deletionTimestamp": None},
            "spec": {"podCIDRs": ["10.244.1.0/24", "fd00::/64"]},
            "status": {"addresses": [address]},
        }
    )
    found.append({"kind": "ServiceCIDR", "spec": {"cidrs": ["10.96.0.0/12", "fd00::/108"]}})
    return {f"{each['kind'].lower()}-{index}": each for index, each in enumerate(found)}


def texts() -> Iterator[tuple[str, str, bytes]]:
    for index, (name, (data, _)) in enumerate(CASES.items()):
        if len(data) < 600:
            yield (
                "http",
                f"{index:02d}-{''.join(c if c.isalnum() else '-' for c in name)}",
                b"\x07" + data,
            )
    facts = held(service(), endpoint_slice(endpoints=[endpoint("10.1.1.1", local=True)]))
    yield "inspection", "held", msgspec.json.encode(facts)
    yield "inspection", "status", msgspec.json.encode(status())
    yield "inspection", "history", msgspec.json.encode(History((), ()))
    yield "log", "lines", 'a\nb\x1b[2J\u2028 "quoted" ü'.encode() + b"\xff"
    for case in ("affinity-clientip", "lb-source-ranges"):
        yield (
            "iptables-save",
            case,
            (GOLDEN / "iptables" / case / "restore.txt").read_bytes()[:4000],
        )
    for name, text in YAMLS.items():
        for target in ("yaml", "configuration", "kubeconfig", "manifests"):
            yield target, name, text.encode()
    yield "manifests", "web", WEB.encode()
    yield (
        "configuration",
        "golden",
        (GOLDEN / "iptables" / "affinity-clientip" / "config.yaml").read_bytes(),
    )
    yield "kubeconfig", "plain", KUBECONFIG.encode()
    for index, text in enumerate(("1h2m3.5s", "128Mi", 'a,"b,c"', "[::1]:80", "10.0.0.0/8", "::1")):
        yield "small-texts", str(index), text.encode()


YAMLS = {
    "aliases": "a: &a [x, y]\nb: *a\nc: {<<: {d: 1}}\n",
    "scalars": "a: 0x1F\nb: 1_000\nc: .inf\nd: ~\ne: 2001-01-01\nf: !!binary aGk=\ng: 'x'\n",
    "documents": "---\na: 1\n...\n---\n- b\n- |\n  text\n- >-\n  folded\n",
}
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: k, cluster: {server: "https://192.0.2.1:6443", certificate-authority-data: aGk=}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
users: [{name: u, user: {token: t, exec: {command: x, apiVersion: client.authentication.k8s.io/v1,
  interactiveMode: Never, env: [{name: A, value: b}]}}}]
"""


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("the kernel's messages can only be recorded by root")
    for target, name, data in (*kernel_messages(), *other_messages(), *api_bytes(), *texts()):
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data[:4096])


if __name__ == "__main__":
    main()
