"""Files and programs of the operator that hold nonsense: an error by name, never an end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.costs import megabytes, seconds_for
from tests.support.recorded import RecordedRequests
from tests.support.reflecting import client_of
from tests.support.waiting import limit

from kpctl.apiserver.pki import Pki
from kpctl.apiserver.small import SmallApiServer
from kubeproxy.api.auth.access import Access, ExecSpec, Tls, normalise_server
from kubeproxy.api.auth.credentials import MOST_TOKEN_BYTES, Credentials
from kubeproxy.api.auth.exec_plugin import decode_credential
from kubeproxy.api.auth.kubeconfig import access_from, parse_kubeconfig, read_kubeconfig
from kubeproxy.api.auth.proxy import choose_proxy
from kubeproxy.api.client import connect
from kubeproxy.api.transport import Request
from kubeproxy.errors import ConfigError, Unavailable

V1 = "client.authentication.k8s.io/v1"
SPEC = ExecSpec(command="plugin", api_version=V1)

GARBLED: dict[str, Callable[[Path], object]] = {
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00token"),
    "not ASCII": lambda path: path.write_text("tökén"),
    "two lines": lambda path: path.write_text("one\ntwo\n"),
    "carriage return": lambda path: path.write_text("one\r\nX-Other: two"),
    "NUL": lambda path: path.write_bytes(b"one\0two"),
    "empty": lambda path: path.write_text(""),
    "blank": lambda path: path.write_text(" \n\t"),
    "too long": lambda path: path.write_bytes(b"x" * (MOST_TOKEN_BYTES + 1)),
    "a directory": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a loop": lambda path: path.symlink_to(path),
}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("garble", GARBLED.values(), ids=GARBLED)
async def test_a_garbled_token_file_leaves_the_last_token_in_use(
    garble: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("good")
    one = Credentials(Access("http://x", token_file=str(path)), observer=RecordedRequests())
    await one.login()
    path.unlink()
    garble(path)
    before = descriptors()
    async with limit():
        for _ in range(3):
            assert (await one.login()).headers == (("Authorization", "Bearer good"),)
    assert descriptors() == before


@pytest.mark.parametrize("garble", GARBLED.values(), ids=GARBLED)
async def test_a_token_file_garbled_from_the_start_is_named(
    garble: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "token"
    garble(path)
    one = Credentials(Access("http://x", token_file=str(path)), observer=RecordedRequests())
    with pytest.raises(Unavailable, match=str(path)):
        await one.login()
    with pytest.raises(ConfigError, match=str(path)):
        one.check()


@pytest.mark.parametrize("token", ["one\ntwo", "a\rb", "a\0b"])
async def test_a_token_that_is_no_header_fails_its_request(api: SmallApiServer, token: str) -> None:
    """A token of the kubeconfig itself, or of a plugin."""
    client = connect(Access(server=api.url, token=token), observer=RecordedRequests())
    try:
        with pytest.raises(Unavailable, match=f"GET {api.url}/api"):
            await client.read(Request("GET", "/api"))
    finally:
        await client.close()


async def test_what_the_library_raises_fails_its_request(
    api: SmallApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LookupError("some encoding")

    async with client_of(api) as client:
        monkeypatch.setattr("kubeproxy.api.transport.dial", fail)
        with pytest.raises(Unavailable, match="some encoding"):
            await client.read(Request("GET", "/api"))


@pytest.mark.parametrize(
    "expiry",
    [
        "2026-01-01T00:00:00",
        "2026-01-01 00:00:00",
        "2026-01-01",
        "tomorrow",
        "",
        "99999-01-01T00:00:00Z",
        "2026-02-31T00:00:00Z",
        -1,
        1e400,
        [],
    ],
)
def test_an_expiry_that_is_no_time_is_named(expiry: object) -> None:
    status = {"token": "t", "expirationTimestamp": expiry}
    printed = {"kind": "ExecCredential", "apiVersion": V1, "status": status}
    with pytest.raises(Unavailable, match="exec: plugin plugin: decoding stdout"):
        decode_credential(json.dumps(printed).encode(), SPEC)


@pytest.mark.parametrize("argument", ["a\0b", "\ud800"])
async def test_an_argument_that_no_program_takes_is_named(argument: str) -> None:
    plugin = ExecSpec(command="true", api_version=V1, arguments=(argument,))
    one = Credentials(Access("http://x", plugin=plugin), observer=RecordedRequests())
    with pytest.raises(Unavailable, match="plugin true: cannot be started"):
        await one.login()


async def test_a_plugins_garbled_certificate_fails_its_request(tmp_path: Path, pki: Pki) -> None:
    status = {"clientCertificateData": "no PEM", "clientKeyData": "no PEM"}
    printed = json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": status})
    plugin = ExecSpec(command="echo", api_version=V1, arguments=(printed,))
    access = Access("https://x", plugin=plugin, tls=Tls(ca_file=str(pki.ca)))
    one = Credentials(access, observer=RecordedRequests())
    one.check()
    with pytest.raises(Unavailable, match="client-certificate-data"):
        await one.login()


# --- kubeconfig ---


def test_a_bomb_in_a_kubeconfig_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    path = tmp_path / "config"
    path.write_text("\n".join([*lines, "clusters: *a11"]))

    def refuse() -> None:
        with pytest.raises(ConfigError, match="document contains excessive aliasing"):
            read_kubeconfig([str(path)])

    assert seconds_for(refuse) < megabytes(200)


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe\xfd",
        b"\x00",
        b"[" * 100_000,
        b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        b"&a [*a]",
        b"clusters: {a: b}",
        b"clusters: [{name: &a [x], cluster: *a}]",
        b"users: [{name: u, user: {token: !!binary x, exec: {env: [1]}}}]",
        b"5",
    ],
)
def test_what_is_no_kubeconfig_is_an_error_that_names_the_file(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=f'error loading config file "{path}"') as caught:
        read_kubeconfig([str(path)])
    assert len(str(caught.value)) < 500


def test_an_extension_of_any_numbers_is_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"""
current-context: m
contexts: [{{name: m, context: {{cluster: c, user: u}}}}]
users:
- {{name: u, user: {{exec: {{command: x, apiVersion: {V1}, interactiveMode: Never}}}}}}
clusters:
- name: c
  cluster:
    server: https://x
    extensions:
    - {{name: client.authentication.k8s.io/exec, extension: {{a: {"9" * 40}, b: 2026-01-01}}}}
""")
    plugin = access_from(read_kubeconfig([str(path)])).plugin
    assert plugin is not None and b"2026-01-01" in plugin.cluster_config


def test_an_empty_kubeconfig_is_empty() -> None:
    assert parse_kubeconfig(b"---\n").current_context == ""


# --- URLs ---


@pytest.mark.parametrize(
    "server",
    [
        "http://[::1",
        "http://::1]",
        "https://[zz]",
        "http://a:b",
        "http://a:99999999999999999999",
        "http://a:-1",
        "http://a:0",
        "http://",
        "http://a b",
        "http://a\nb",
        "http://a\x7f",
        "://",
        "ftp://a",
        "[",
        "http://a?x",
        "http://a#x",
    ],
)
def test_a_server_that_is_no_url_is_an_error(server: str) -> None:
    with pytest.raises(ConfigError, match="host must be a URL or a host:port pair"):
        normalise_server(server, Tls())


@pytest.mark.parametrize("proxy", ["http://[::1", "http://a:x", "[", "http://", "http://a:99999"])
def test_a_proxy_that_is_no_url_is_an_error(proxy: str) -> None:
    with pytest.raises(ConfigError, match="only http and https proxies"):
        choose_proxy("https://api", "", {"HTTPS_PROXY": proxy})
    with pytest.raises(ConfigError, match="only http and https proxies"):
        choose_proxy("https://api", proxy, {})


def test_a_port_of_many_digits_bypasses_nothing() -> None:
    environment = {"HTTPS_PROXY": "http://p:1", "NO_PROXY": f"api:{'9' * 10_000}"}
    assert choose_proxy("https://api", "", environment) == "http://p:1"
