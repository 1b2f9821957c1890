"""Every path of the health and metrics servers, over loopback sockets."""

from __future__ import annotations

import asyncio
import gzip
import socket

import msgspec
import pytest
import yaml
from tests.support.loopback import Reply, ask, running, serving
from tests.support.waiting import LIMIT_SECONDS, until, within_limit

from kubeproxy.facts.ids import Family
from kubeproxy.status.debug_pages import DebugPages
from kubeproxy.status.health import ProxyHealth
from kubeproxy.status.health_server import HEALTHZ_ROLE, health_handler
from kubeproxy.status.http import HttpServer, Request, Response, ServeError, ServerRole, text
from kubeproxy.status.metrics import Metrics
from kubeproxy.status.metrics_server import METRICS_ROLE, Pages, metrics_handler
from kubeproxy.status.pprof import Profile
from kubeproxy.status.zpages import RunningVersion

TEXT = "text/plain; charset=utf-8"
STARTED_NS = 1_794_744_000 * 10**9
VERSION = RunningVersion(STARTED_NS, "python3.11", "1.36.4", "1.36")
CONFIG = b'{"kind":"KubeProxyConfiguration","apiVersion":"kubeproxy.config.k8s.io/v1alpha1"}'
FLAGS = {"v": "2", "bind-address": "0.0.0.0", "help": "false"}


def pages(metrics: Metrics | None = None, *, debug: DebugPages | None = None) -> Pages:
    return Pages(metrics or Metrics("ipvs"), CONFIG, FLAGS, VERSION, debug)


async def get(path: str, shown: Pages | None = None, method: str = "GET", **headers: str) -> Reply:
    """One request to a fresh metrics server with fixed clock and separator."""
    handler = metrics_handler(
        shown or pages(),
        now_ns=lambda: STARTED_NS + 3675 * 10**9,
        choose=lambda options: options[2],
    )
    async with serving(handler) as port:
        return await ask(port, path, method, **headers)


# -- the health server --


async def test_health_server_answers_probes_and_counts_them() -> None:
    """/healthz minds the node, /livez does not; any method; other paths do not exist."""
    metrics = Metrics("iptables")
    health = ProxyHealth(60, monotonic=lambda: 0, wall_ns=lambda: STARTED_NS)
    health.updated(Family.IPV4)
    async with serving(health_handler(health, metrics)) as port:
        failing = await ask(port, "/healthz")
        live = await ask(port, "/livez", "POST")
        health.node_eligible = True
        passing = await ask(port, "/healthz?verbose", "DELETE")
        missing = await ask(port, "/healthz/")
    assert (failing.status, live.status, passing.status) == (503, 200, 200)
    assert passing.headers["Content-Type"] == "application/json"
    assert passing.headers["X-Content-Type-Options"] == "nosniff"
    assert passing.body == health.healthz().body
    assert (missing.status, missing.body) == (404, b"404 page not found\n")
    body = metrics.scrape()[1].decode()
    assert 'kubeproxy_proxy_healthz_total{code="200"} 1\n' in body
    assert 'kubeproxy_proxy_healthz_total{code="503"} 1\n' in body
    assert 'kubeproxy_proxy_livez_total{code="200"} 1\n' in body


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 on this host")
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
async def test_a_wildcard_serves_both_families(address: str) -> None:
    async def hello(_: Request) -> Response:
        return text("hello")

    async with serving(hello, address) as port:
        assert (await ask(port, "/", host="127.0.0.1")).body == b"hello"
        assert (await ask(port, "/", host="::1")).body == b"hello"


async def nothing(_: Request) -> Response:
    return text("")


async def test_a_taken_address_is_retried_every_five_seconds() -> None:
    """The server comes up as soon as the other program is gone."""
    taken = socket.create_server(("127.0.0.1", 0))
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            taken.close()

    address = f"127.0.0.1:{taken.getsockname()[1]}"
    async with running(HttpServer(METRICS_ROLE, address, nothing, sleep=sleep)):
        assert slept == [5.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("role", "message", "reason"),
    [
        (
            HEALTHZ_ROLE,
            "healthz server failed: failed to start proxy healthz on {0}: "
            "listen tcp {0}: bind: address already in use",
            "FailedToStartProxierHealthcheck",
        ),
        (METRICS_ROLE, "listen tcp {0}: bind: address already in use", "FailedToStartMetricServer"),
    ],
)
async def test_failing_hard_ends_at_once(role: ServerRole, message: str, reason: str) -> None:
    """The error has upstream's text and the reason of its event."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ServeError) as caught:
            await HttpServer(role, address, nothing, hard_fail=True).run()
    assert str(caught.value) == message.format(address)
    assert caught.value.event_reason == reason


# -- the metrics server --


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/healthz", "ok"),
        ("/healthz/ping", "ok"),
        ("/healthz?verbose", "[+]ping ok\nhealthz check passed\n"),
        ("/healthz?exclude=ping", "ok"),
        ("/healthz?verbose&exclude=ping", "[+]ping excluded: ok\nhealthz check passed\n"),
        (
            "/healthz?verbose=1&exclude=foo",
            "[+]ping ok\nwarn: some health checks cannot be excluded: no matches for "
            '"foo"\nhealthz check passed\n',
        ),
    ],
)
async def test_healthz_of_the_metrics_server(path: str, body: str) -> None:
    reply = await get(path)
    assert (reply.status, reply.body.decode()) == (200, body)
    assert reply.headers["Content-Type"] == TEXT


@pytest.mark.parametrize(
    "path", ["/", "/livez", "/readyz", "/debug/pprof/", "/debug/flags/v", "/metrics/"]
)
async def test_paths_that_do_not_exist(path: str) -> None:
    """Among them the debug pages while profiling is off."""
    reply = await get(path)
    assert (reply.status, reply.body) == (404, b"404 page not found\n")
    assert reply.headers["Content-Type"] == TEXT
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


async def test_proxy_mode_is_plain_text() -> None:
    reply = await get("/proxyMode", method="PUT")
    assert (reply.body, reply.headers["Content-Type"]) == (b"ipvs", TEXT)
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_waiting_proxy_names_no_mode() -> None:
    """By its mode a proxy that programs the kernel is known to others."""
    reply = await get("/proxyMode", Pages(Metrics("ipvs"), CONFIG, is_waiting=lambda: True))
    assert reply.status == 503
    assert reply.body == b"waiting for the end of another kube-proxy\n"


async def test_configz_wraps_the_configuration() -> None:
    reply = await get("/configz")
    assert reply.body == b'{"kubeproxy.config.k8s.io":' + CONFIG + b"}"
    assert reply.headers["Content-Type"] == "application/json"


async def test_metrics_are_text_by_default() -> None:
    metrics = Metrics("ipvs")
    reply = await get("/metrics", pages(metrics), method="POST")
    kind = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
    assert reply.headers["Content-Type"] == kind
    started = int(metrics.process.start_time_seconds())
    assert reply.headers["Process-Start-Time-Unix"] == str(started)
    assert b"\nkubeproxy_sync_proxy_rules_service_changes_total 0\n" in reply.body


async def test_metrics_are_compressed_when_the_client_takes_it() -> None:
    reply = await get("/metrics", Accept_Encoding="deflate, gzip;q=0.8")
    assert reply.headers["Content-Encoding"] == "gzip"
    assert b"kubeproxy_sync_proxy_rules_service_changes_total 0\n" in gzip.decompress(reply.body)
    plain = await get("/metrics", Accept_Encoding="gzip;q=0")
    assert "Content-Encoding" not in plain.headers


async def test_metrics_are_protobuf_when_asked() -> None:
    wanted = (
        "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; "
        "encoding=delimited"
    )
    reply = await get("/metrics", Accept=wanted)
    assert reply.headers["Content-Type"] == f"{wanted}; escaping=underscores"
    assert b"\n\x16disabled_metrics_total" in reply.body


async def test_slis_follow_healthz_and_can_be_reset() -> None:
    gauge = b'kubernetes_healthcheck{name="ping",type="healthz"} 1\n'
    counter = b'kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 2\n'
    async with serving(metrics_handler(pages())) as port:
        before = (await ask(port, "/metrics/slis")).body
        for path in ("/healthz", "/healthz", "/healthz?exclude=ping", "/healthz/ping"):
            await ask(port, path)
        after = (await ask(port, "/metrics/slis")).body
        reset = (await ask(port, "/metrics/slis", "DELETE")).body
        empty = (await ask(port, "/metrics/slis")).body
    assert b"kubernetes_healthcheck" not in before
    assert b"process_start_time_seconds " in before
    assert gauge in after
    assert counter in after
    assert reset == b"metrics reset\n"
    assert empty == before


NOTICE = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting "
    "compatibility guarantees and is for debugging purposes only.\n"
)


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;q=0.5", "text/html,*/*;q=0.8"])
async def test_flagz_as_text(accept: str) -> None:
    reply = await get("/flagz", Accept=accept)
    lines = "bind-address=0.0.0.0\nhelp=false\nv=2\n"
    assert reply.body.decode() == f"\nkube-proxy flagz\n{NOTICE}\n{lines}"
    assert reply.headers["Content-Type"] == TEXT


async def test_flagz_keeps_its_separator_for_the_life_of_the_process() -> None:
    choices = iter([":", "=", " "])
    async with serving(metrics_handler(pages(), choose=lambda _: next(choices))) as port:
        bodies = {(await ask(port, "/flagz")).body for _ in range(3)}
    assert len(bodies) == 1


async def test_flagz_structured() -> None:
    reply = await get("/flagz", Accept="application/json;v=v1beta1;g=config.k8s.io;as=Flagz")
    kind = "application/json;g=config.k8s.io;v=v1beta1;as=Flagz"
    assert reply.headers["Content-Type"] == kind
    assert "Warning" not in reply.headers
    assert msgspec.json.decode(reply.body) == {
        "kind": "Flagz",
        "apiVersion": "config.k8s.io/v1beta1",
        "metadata": {"name": "kube-proxy"},
        "flags": FLAGS,
    }


async def test_structured_pages_speak_yaml_and_warn_of_the_old_version() -> None:
    accept = "application/yaml;v=v1alpha1;g=config.k8s.io;as=Statusz"
    reply = await get("/statusz", Accept=accept)
    assert reply.headers["Warning"].startswith('299 - "config.k8s.io/v1alpha1 Statusz is deprec')
    assert yaml.safe_load(reply.body)["apiVersion"] == "config.k8s.io/v1alpha1"


@pytest.mark.parametrize("path", ["/flagz", "/statusz"])
@pytest.mark.parametrize(
    "accept",
    [
        "application/json",
        "text/html",
        "application/json;v=v9;g=config.k8s.io;as=Flagz",
        "application/json;v=v1beta1;g=config.k8s.io;as=Other",
    ],
)
async def test_other_types_are_not_acceptable(path: str, accept: str) -> None:
    reply = await get(path, Accept=accept)
    assert reply.status == 406
    status = msgspec.json.decode(reply.body)
    assert (status["kind"], status["reason"], status["code"]) == ("Status", "NotAcceptable", 406)
    assert status["message"] == (
        "only the following media types are accepted: "
        "application/json, application/yaml, text/plain"
    )


async def test_statusz_as_text() -> None:
    reply = await get("/statusz")
    assert reply.body.decode() == (
        f"\nkube-proxy statusz\n{NOTICE}\n"
        "Started= Sun Nov 15 12:00:00 UTC 2026\n"
        "Up= 1 hr 01 min 15 sec\n"
        "Go version= python3.11\n"
        "Binary version= 1.36.4\n"
        "Emulation version= 1.36\n"
        "Paths= /configz /flagz /healthz /metrics /proxyMode\n"
    )


async def test_statusz_structured() -> None:
    reply = await get("/statusz", Accept="application/json;v=v1beta1;g=config.k8s.io;as=Statusz")
    assert msgspec.json.decode(reply.body) == {
        "kind": "Statusz",
        "apiVersion": "config.k8s.io/v1beta1",
        "metadata": {"name": "kube-proxy"},
        "startTime": "2026-11-15T12:00:00Z",
        "uptimeSeconds": 3675,
        "goVersion": "python3.11",
        "binaryVersion": "1.36.4",
        "emulationVersion": "1.36",
        "paths": ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"],
    }


async def test_pages_behind_a_closed_gate_do_not_exist() -> None:
    closed = Pages(Metrics("ipvs"), CONFIG, version=VERSION)
    assert (await get("/flagz", closed)).status == 404
    assert b"/flagz" not in (await get("/statusz", closed)).body
    assert (await get("/statusz", Pages(Metrics("ipvs"), CONFIG))).status == 404


# -- debug pages --


def debug(seen: list[int] | None = None) -> Pages:
    verbosity = seen if seen is not None else []
    shown = DebugPages(command_line=["kube-proxy", "-v=2"], set_verbosity=verbosity.append)
    return pages(debug=shown)


async def test_pprof_index_and_redirect() -> None:
    moved = await get("/debug/pprof", debug())
    assert (moved.status, moved.headers["Location"]) == (302, "/debug/pprof/")
    index = await get("/debug/pprof/", debug())
    assert index.headers["Content-Type"] == "text/html; charset=utf-8"
    for name in ("profile", "heap", "goroutine", "cmdline"):
        assert f"<a href='{name}?debug=1'>".encode() in index.body


async def test_the_verbosity_can_be_set() -> None:
    seen: list[int] = []
    async with serving(metrics_handler(debug(seen))) as port:
        good = await ask(port, "/debug/flags/v", "PUT", "3")
        bad = await ask(port, "/debug/flags/v", "PUT", "three")
        other = await ask(port, "/debug/flags/v")
        index = await ask(port, "/debug/flags")
        unknown = await ask(port, "/debug/flags/w", "PUT", "3")
    assert good.body == b"successfully set klog.logging.verbosity to 3\n"
    assert seen == [3]
    assert bad.status == 400
    assert b'parsing "three": invalid syntax' in bad.body
    assert (other.status, other.body) == (406, b"unsupported http method\n")
    assert b">v</a>" in index.body
    assert unknown.status == 404


async def test_stacks_of_threads_and_tasks() -> None:
    reply = await get("/debug/pprof/goroutine?debug=2", debug())
    assert b"thread MainThread:" in reply.body
    assert b"test_stacks_of_threads_and_tasks" in reply.body
    packed = await get("/debug/pprof/goroutine", debug())
    assert b"test_stacks_of_threads_and_tasks" in gzip.decompress(packed.body)


async def test_small_profiles() -> None:
    assert (await get("/debug/pprof/cmdline", debug())).body == b"kube-proxy\0-v=2"
    assert (await get("/debug/pprof/symbol", debug())).body == b"num_symbols: 0\n"
    assert (await get("/debug/pprof/trace", debug())).status == 501
    assert (await get("/debug/pprof/nonsense", debug())).status == 404
    mutex = await get("/debug/pprof/mutex", debug())
    assert b"contentions" in gzip.decompress(mutex.body)


async def test_a_heap_profile_shows_what_was_allocated_meanwhile() -> None:
    """Tracing ends with the profile."""
    import tracemalloc

    kept: list[bytearray] = []

    async def allocate() -> None:
        while not tracemalloc.is_tracing():
            await asyncio.sleep(0)
        kept.append(bytearray(3_000_000))

    async with serving(metrics_handler(debug())) as port, asyncio.TaskGroup() as group:
        group.create_task(allocate())
        reply = await ask(port, "/debug/pprof/heap?debug=1&seconds=0.05")
    assert b"test_http_servers.py" in reply.body
    assert max(int(x.rpartition(b" ")[2]) for x in reply.body.splitlines()[1:]) >= 3_000_000
    assert not tracemalloc.is_tracing()


async def test_only_one_heap_profile_at_a_time() -> None:
    """While memory is traced, further snapshots would be taken at once, as many as are wanted."""
    go_on, asked = asyncio.Event(), 0

    async def trace(_: float) -> Profile:
        nonlocal asked
        asked += 1
        await go_on.wait()
        return Profile((("inuse_space", "bytes"),), {})

    shown = DebugPages(command_line=[], set_verbosity=print, trace_heap=trace)
    async with serving(metrics_handler(pages(debug=shown))) as port:
        first = asyncio.create_task(ask(port, "/debug/pprof/heap"))
        await until(lambda: asked)
        second = await within_limit(ask(port, "/debug/pprof/allocs"))
        go_on.set()
        assert (await first).status == 200
        assert (await ask(port, "/debug/pprof/heap")).status == 200
    assert second.status == 500
    assert b"heap profiling already in use" in second.body


async def test_only_one_cpu_profile_at_a_time() -> None:
    """The second client gets an error, the first a profile of the length it asked for."""
    import threading

    asked: list[float] = []
    go_on = threading.Event()

    def sample(seconds: float) -> Profile:
        asked.append(seconds)
        go_on.wait(LIMIT_SECONDS)
        return Profile((("cpu", "nanoseconds"),), {})

    shown = DebugPages(command_line=[], set_verbosity=print, sample_cpu=sample)
    async with serving(metrics_handler(pages(debug=shown))) as port:
        first = asyncio.create_task(ask(port, "/debug/pprof/profile?seconds=7"))
        await until(lambda: asked)
        second = await ask(port, "/debug/pprof/profile")
        go_on.set()
        reply = await first
    assert second.status == 500
    assert b"cpu profiling already in use" in second.body
    assert reply.status == 200
    assert asked == [7.0]
