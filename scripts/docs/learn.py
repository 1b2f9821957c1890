"""Pages for learners out of the corpus of flows: a story, objects, packets and their ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kpctl.demo.lab import read_topology
from kpctl.flows.flow import Check, Flow, Packets
from kpctl.flows.library import CORPUS, load_corpus, short_name
from kpctl.flows.objects import World
from kpctl.lab.topology import SERVICE_CIDR, Topology
from kubeproxy.facts.ids import Family
from scripts.docs.chapters import CHAPTERS, Chapter
from scripts.docs.markdown import code, fence, page, prose, table
from scripts.docs.paths import Sent, Station, claims, first_packet, stations

MODES = ("nftables", "iptables", "ipvs", "userspace")


def learn_pages() -> dict[str, str]:
    """All pages by file name."""
    flows = load_corpus()
    pages = {f"{chapter.name}.md": _chapter(chapter, flows) for chapter in CHAPTERS}
    return {"index.md": _index(flows), **pages}


def _of(chapter: Chapter, flows: Sequence[Flow]) -> list[Flow]:
    return [flow for flow in flows if flow.name.startswith(f"{chapter.number}-")]


def _index(flows: Sequence[Flow]) -> str:
    rows = [
        (f"[{chapter.title}]({chapter.name}.md)", _sentence(chapter.text))
        for chapter in CHAPTERS
        if _of(chapter, flows)
    ]
    return page(
        "How a Service works",
        "These pages follow single packets. Each section is a *flow*: a few objects, packets that "
        "are sent, and what becomes of them. The flows are the project's tests, so what is "
        "written here is true, in every mode. The drawings show what the rules do to the first "
        "packet.",
        "You can run each flow yourself, as root, in network namespaces that are removed again:",
        fence("$ kpctl lab --flow cluster-ip --mode nftables", "console flow"),
        "## The cluster\n\n![Two nodes with their pods, and two clients outside](cluster.svg)",
        "Pods named `client` ask, pods named `web` answer. `outside` enters the cluster through "
        f"node-a, `outside-b` through node-b. Cluster IPs are from {SERVICE_CIDR[Family.IPV4]}. "
        "In userspace mode a pod always sees the node that carried the connection, whatever the "
        "tables say about who is seen.",
        "## Pages\n\n" + table(("page", "in a sentence"), rows),
        "How each mode is built is in [nftables](../modes/nftables.md), "
        "[iptables](../modes/iptables.md), [ipvs](../modes/ipvs.md) and "
        "[userspace](../modes/userspace.md); the format of the files in [flows](../flows.md).",
    )


def _sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".") + "."


def _chapter(chapter: Chapter, flows: Sequence[Flow]) -> str:
    topology = read_topology(None)
    parts = [_section(flow, topology) for flow in _of(chapter, flows)]
    return page(chapter.title, chapter.text, *parts)


def _section(flow: Flow, topology: Topology) -> str:
    world = World(topology, block=0, families=(Family.IPV4,))
    name = short_name(flow.name)
    parts = [f"## {flow.title}", prose(flow.story), _outcomes(flow)]
    parts += [_drawings(flow, world)]
    parts += [_details("The flow file", fence(_file_text(flow), "yaml"))]
    parts += [fence(_command(flow, name), "console flow")]
    return "\n\n".join(filter(None, parts))


def _file_text(flow: Flow) -> str:
    return (CORPUS / f"{flow.name}.yaml").read_text(encoding="utf-8")


def _command(flow: Flow, name: str) -> str:
    mode = "" if flow.runs_in("nftables") else f" --mode {flow.modes[0]}"
    variant = "" if "dual" in flow.variants else f" --variant {flow.variants[0]}"
    return f"$ kpctl lab --flow {name}{mode}{variant}"


def _outcomes(flow: Flow) -> str:
    """The packets of the first step that sends any."""
    for step in flow.steps:
        if isinstance(step, Packets):
            return table(("packet", "fate"), (_outcome(check) for check in step.checks))
    return ""


def _outcome(check: Check) -> tuple[str, str]:
    """The fate, and where modes differ that of the others with their names.

    That a pod sees the node in userspace mode is written once, on the first page.
    """
    modes: dict[str, list[str]] = {}
    for mode in MODES:
        modes.setdefault(_fate(check, mode), []).append(mode)
    (usual, _), *others = modes.items()
    shown = [usual, *(f"{' and '.join(names)}: {fate}" for fate, names in others)]
    return code(check.packet.text), "; ".join(shown)


def _fate(check: Check, mode: str) -> str:
    expected = check.expected(mode)
    if not expected.answers:
        return expected.fate.value
    return "; ".join(
        " or ".join(answer.hosts) + (f" sees {answer.seen}" if answer.seen else "")
        for answer in expected.answers
    )


def _drawings(flow: Flow, world: World) -> str:
    drawn: list[str] = []
    for mode in MODES:
        sent = first_packet(flow, world, mode) if claims(flow, mode) else None
        if sent is not None:
            summary = f"The way of the first packet: {mode}"
            drawn.append(_details(summary, _drawing(sent, mode), is_open=mode == MODES[0]))
    return "\n\n".join(drawn)


def _drawing(sent: Sent, mode: str) -> str:
    return fence("\n".join(_lines(sent, mode)), "text")


def _lines(sent: Sent, mode: str) -> Iterator[str]:
    packet, destination = sent.check.packet, sent.destination
    where = f"{destination.address}:{destination.port}/{destination.protocol.value}"
    yield f"{packet.source} {sent.arrival.source}"
    yield f"  │  to {packet.place} {where}"
    yield f"{sent.node.name}"
    passed = stations(sent, mode)
    width = max((len(_head(station)) for station in passed if station.what), default=0)
    yield from (_station(station, width) for station in passed)
    if not passed:
        yield "  │  no rule matches: routed as it is"
    yield "  ▼"
    yield _end(sent, mode)


def _head(station: Station) -> str:
    indent = "  " * station.depth
    return f"{indent}{'└ ' if station.depth and station.place else ''}{station.place}"


def _station(station: Station, width: int) -> str:
    if not station.place:
        return f"  │  {_head(station)}  {station.what}"
    return f"  │  {_head(station):<{width}}  {station.what}".rstrip()


def _end(sent: Sent, mode: str) -> str:
    expected = sent.check.expected(mode)
    if mode == "userspace" and expected.answers:
        return " or ".join(sorted(expected.hosts)) + f" sees {sent.node.name}"
    return _fate(sent.check, mode)


def _details(summary: str, body: str, *, is_open: bool = False) -> str:
    """Folded text; the blank lines let a repository browser read the Markdown inside."""
    state = " open" if is_open else ""
    return f'<details markdown="1"{state}>\n<summary>{summary}</summary>\n\n{body}\n\n</details>'
