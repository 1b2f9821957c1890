"""Names of objects in every output: rule text, comments, names of kernel objects, logs, metrics.

The same with a kernel, tools and the real program is in `test_hostile_names_kernel.py`, the page in
`tests/dashboard/test_page.py`.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.builders import node
from tests.support.hostile import LOG_LINE, NAMES, TEXTS, commands_in, hostile_services

from kpctl.look.output import print_data, print_paragraphs, print_table, print_text
from kpctl.look.plantext import print_rows
from kpctl.look.planview import Row
from kpctl.look.sentences import format_sentence
from kpctl.top import screen
from kubeproxy.api import objects
from kubeproxy.api.decode import decode_service, decode_slice, decode_zone
from kubeproxy.api.events import EventRequest
from kubeproxy.errors import ObjectError
from kubeproxy.facts.ids import Family, Protocol, ServiceName, ServicePortId
from kubeproxy.logs.entry import Entry, Severity, format_json, format_text
from kubeproxy.modes.base import AnyBackend, Owner
from kubeproxy.modes.registry import load_mode, mode_names
from kubeproxy.plan.service import plan_service
from kubeproxy.plan.types import ServicePlan
from kubeproxy.status.event_series import service_reference
from kubeproxy.status.events import Recorder
from kubeproxy.status.exposition import TEXT, encode
from kubeproxy.status.service_counters import ServiceCounters
from kubeproxy.status.service_health import service_response

HEADER = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [^ ]+\] ")
HOSTILE = (*NAMES, *TEXTS)


def service_of(name: str, namespace: str = "shop", **fields: object) -> objects.Service:
    spec = {"clusterIP": "10.96.0.1", "ports": [{"port": 80}], **fields}
    document = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
    return msgspec.convert(document, objects.Service)


def slice_of(**endpoint: object) -> objects.EndpointSlice:
    labels = {"kubernetes.io/service-name": "web"}
    return msgspec.convert(
        {
            "metadata": {"name": "web-1", "namespace": "shop", "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": 80}],
            "endpoints": [{"addresses": ["10.1.1.1"], **endpoint}],
        },
        objects.EndpointSlice,
    )


# --- what gets in ---


REFUSED = [text for text in HOSTILE if not re.fullmatch(r"\w+", text, re.ASCII) or len(text) > 253]


@pytest.mark.parametrize("text", REFUSED)
def test_a_text_that_is_no_name_is_refused_and_shown_harmlessly(text: str) -> None:
    for found in (service_of(text), service_of("web", namespace=text)):
        with pytest.raises(ObjectError) as refused:
            decode_service(found, Family.IPV4)
        assert not commands_in(str(refused.value)) and "\n" not in str(refused.value)
        assert len(str(refused.value)) < 2000


@pytest.mark.parametrize("text", [text for text in HOSTILE if not re.fullmatch("[a-z0-9]*", text)])
def test_a_port_name_is_letters_digits_and_hyphens(text: str) -> None:
    decoded = decode_service(service_of("web", ports=[{"port": 80, "name": text}]), Family.IPV4)
    assert decoded.facts is not None
    is_allowed = re.fullmatch("[A-Za-z0-9-]{0,253}", text) is not None
    assert len(decoded.facts.ports) == is_allowed
    assert not commands_in("".join(decoded.problems)) and "\n" not in "".join(decoded.problems)


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_only_compared_and_shown_is_one_harmless_line(text: str) -> None:
    """Node names, hints, zones: the API server checks them, a proxy shows them."""
    hints = {"forZones": [{"name": text}], "forNodes": [{"name": text}]}
    facts = decode_slice(slice_of(nodeName=text, hints=hints), "worker-a").facts
    (found,) = facts.endpoints[0][1]
    shown = [found.node_name, *found.zone_hints, *found.node_hints]
    labels = {"topology.kubernetes.io/zone": text}
    here = msgspec.convert({"metadata": {"name": "a", "labels": labels}}, objects.Node)
    shown.append(decode_zone(here))
    ingress = [{"ip": "203.0.113.1", "ipMode": text}, {"ip": text, "ipMode": "Proxy"}]
    balanced = msgspec.convert(
        {
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": ingress}},
        },
        objects.Service,
    )
    decoded = decode_service(balanced, Family.IPV4)
    shown += [*decoded.problems, *(decoded.facts.ignored if decoded.facts else ())]
    assert not commands_in("".join(shown)) and "\n" not in "".join(shown)
    assert max(map(len, shown)) < 600


# --- what goes to the kernel ---


def rendered(mode: str, family: Family) -> tuple[AnyBackend, dict[Owner, dict[Any, Any]]]:
    """What a mode makes of all hostile names."""
    loaded = load_mode(mode)
    from kubeproxy.config.command import Settings, parse_command_line

    settings = parse_command_line([f"--proxy-mode={mode}"])
    assert isinstance(settings, Settings)
    backend = loaded.create(family, loaded.options(settings.config, settings.extensions))
    here = node(family)
    found: dict[Owner, dict[Any, Any]] = {}
    for facts, endpoints in hostile_services(family):
        for plan in plan_service(facts, dict(endpoints.endpoints), here):
            assert isinstance(plan, ServicePlan)
            found[plan.id] = dict(backend.render(plan, backend.rendering_facts(here)))
    return backend, found


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("mode", mode_names())
def test_what_people_are_shown_has_no_commands(mode: str, family: Family) -> None:
    backend, found = rendered(mode, family)
    lines = [line for items in found.values() for line in backend.lines(items)]
    text = backend.describe(found)
    assert lines and text
    assert not commands_in(text) and not commands_in("".join(lines))
    assert all("\n" not in line for line in lines)


CHAIN = re.compile(r"[A-Z0-9-]{1,28}")


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("mode", ["iptables", "userspace"])
def test_a_name_is_one_word_of_a_rule(mode: str, family: Family) -> None:
    """A rule is read as words; all of a hostile name is in the word behind `--comment`."""
    backend, found = rendered(mode, family)
    commented = 0
    for owner, items in found.items():
        assert isinstance(owner, ServicePortId)
        for line in (line for line in backend.lines(items) if " -A " in line):
            words = shlex.split(line)
            if len(owner.name) > 3:
                places = [index for index, word in enumerate(words) if owner.name in word]
                assert all(words[index - 1] == "--comment" for index in places), line
                commented += len(places)
            jumps = [words[index + 1] for index, word in enumerate(words[:-1]) if word == "-j"]
            assert jumps and all(map(CHAIN.fullmatch, jumps)), line
    assert commented


@pytest.mark.parametrize("family", Family)
def test_names_of_sets_and_servers_are_ours_in_ipvs_mode(family: Family) -> None:
    backend, found = rendered("ipvs", family)
    for owner, items in found.items():
        assert isinstance(owner, ServicePortId)
        for line in backend.lines(items):
            assert len(owner.name) <= 3 or owner.name not in line, line
            if line.startswith("add "):
                assert CHAIN.fullmatch(line.split()[1])


def test_comments_of_nftables_are_what_the_service_port_is_called() -> None:
    """They go to the kernel as bytes with a length. In nft's language they are quoted."""
    backend, found = rendered("nftables", Family.IPV4)
    for owner, items in found.items():
        for line in backend.lines(items):
            quoted = re.findall(r'"([^"]*)"', line)
            assert line.count('"') == 2 * len(quoted)
            outside = re.sub(r'"[^"]*"', "", line)
            for name in re.findall(
                r"(?:affinity|endpoint|service|local|external)-\S*/\S*", outside
            ):
                assert re.fullmatch(r"[A-Za-z][A-Za-z0-9/._-]*[;,]?", name), line
            if isinstance(owner, ServicePortId) and not re.fullmatch(r"[\w/.-]+", owner.name):
                assert len(owner.name) < 4 or owner.name not in outside, line


# --- logs ---


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_makes_another_log_line(text: str) -> None:
    """Wherever it stands: in the message, as a value, as a name, in an error, from a library."""
    entries = [
        Entry(message=text),
        Entry(message="m", values={"service": text, "names": [text], "map": {text: text}}),
        Entry(message="m", values={"service": ServiceName(text, text)}),
        Entry(message="m", error=text, severity=Severity.ERROR),
        Entry(message=f"library: {text}", is_structured=False),
    ]
    for entry in entries:
        lines = format_text(entry).split("\n")[:-1]
        assert HEADER.match(lines[0])
        assert all(line.startswith(("\t", " >")) for line in lines[1:]), lines
        assert not commands_in("\n".join(lines))
        line = format_json(entry)
        assert line.count("\n") == 1 and not commands_in(line)
        assert set(json.loads(line)) >= {"ts", "msg"}


def test_a_forged_line_is_part_of_the_one_it_is_in() -> None:
    forged = f"x\n{LOG_LINE}"
    for entry in (Entry(message="m", values={"v": forged}), Entry(message=forged)):
        assert sum(map(bool, map(HEADER.match, format_text(entry).split("\n")))) == 1


# --- metrics and health ---


@pytest.mark.parametrize("text", [text for text in HOSTILE if text != "\ud800"])
def test_a_label_is_one_value_of_one_series(text: str) -> None:
    counters = ServiceCounters(5)
    counters.connected(ServiceName(text, text))
    families = list(text_string_to_metric_families(encode(counters.collect(), TEXT).decode()))
    samples = [s for f in families for s in f.samples if s.value == 1 and "name" in s.labels]
    assert [sample.labels["name"] for sample in samples] == [text]


@pytest.mark.parametrize("name", NAMES)
def test_a_health_check_names_its_service_as_json(name: str) -> None:
    response = service_response(ServiceName(name, name), 1, proxy_healthy=True)
    assert json.loads(response.body)["service"] == {"namespace": name, "name": name}
    assert all(name not in value for _, value in response.headers if len(name) > 3)


# --- events ---


class EventStore:
    """Keeps what is posted."""

    def __init__(self) -> None:
        self.posted: list[EventRequest] = []

    async def post_event(self, request: EventRequest) -> int:
        self.posted.append(request)
        return 201


@pytest.mark.parametrize("text", [*HOSTILE, "x" * 5000, "\U0001f525" * 2000])
async def test_an_event_is_for_reading_and_not_too_long(text: str) -> None:
    store = EventStore()
    recorder = Recorder(store, hostname="n", now_ns=lambda: 1, random=lambda: 0.5)
    about = service_reference(ServiceName("shop", "web"))
    recorder.record(about, type="Warning", reason="X", action="Y", note=f"by {text}")
    await recorder.drain()
    (request,) = store.posted
    note = json.loads(request.body)["note"]
    assert not commands_in(note) and len(note.encode()) <= 1024
    assert request.namespace == "shop"


# --- kpctl ---


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
@pytest.mark.parametrize("text", [text for text in HOSTILE if text != "\ud800"])
def test_tables_and_paragraphs_show_texts_as_they_are(
    text: str, stream: Callable[[], io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich has a language of its own in brackets, terminals one behind the escape character."""
    monkeypatch.setenv("COLUMNS", "900")
    writers: tuple[Callable[[io.StringIO], None], ...] = (
        lambda out: print_table(["name"], [[text]], out),
        lambda out: print_paragraphs([(2, text)], out),
        lambda out: print_rows([Row(text, (text,), "forward", (text,), text)], out),
    )
    for write in writers:
        out = stream()
        write(out)
        shown = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())  # our own colours
        assert not commands_in(shown)
        if text in NAMES:
            assert text in shown


@pytest.mark.parametrize("text", [text for text in HOSTILE if text != "\ud800"])
def test_lines_data_and_errors_show_texts_as_they_are(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_text(text)
    assert not commands_in(capsys.readouterr().out)
    print_data({"name": text, text: [text]}, "json")
    shown = capsys.readouterr().out
    assert not commands_in(shown) and json.loads(shown) == {"name": text, text: [text]}
    print_data([{"name": text}], "yaml")
    shown = capsys.readouterr().out
    assert not commands_in(shown) and yaml.safe_load(shown) == {"name": text}
    sentence = format_sentence(Entry(message="m", error=text, values={"name": text}))
    assert not commands_in(sentence)
    assert all(line.startswith("  ") for line in sentence.split("\n")[1:-1])
    screen.draw([text])
    drawn = capsys.readouterr().out.removeprefix("\x1b[H\x1b[J")
    assert not commands_in(drawn)


def test_commands_print_through_one_door() -> None:
    """`click.echo` prints what it gets. Those that show what others wrote use `print_text`."""
    from pathlib import Path

    import kpctl

    shows = ("top", "trace", "doctor", "report", "connections", "look", "drift", "snapshot")
    files = [f for name in shows for f in (Path(kpctl.__file__).parent / name).glob("*.py")]
    direct = [f for f in files if "click.echo(" in f.read_text() and f.name != "output.py"]
    assert files and not direct


def test_protocols_are_words_of_ours() -> None:
    """No text of an object becomes a protocol: it is one of three."""
    ports = [{"port": 80, "protocol": text} for text in HOSTILE if text]
    decoded = decode_service(service_of("web", ports=ports), Family.IPV4)
    assert decoded.facts is not None and decoded.facts.ports == ()
    assert {protocol.value for protocol in Protocol} == {"TCP", "UDP", "SCTP"}
