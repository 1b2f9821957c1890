"""kubeconfig files: reading, merging, and every way they can be wrong."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from kubeproxy.api.auth.access import ExecSpec, Tls, normalise_server
from kubeproxy.api.auth.kubeconfig import access_from, read_kubeconfig, split_paths
from kubeproxy.errors import ConfigError


def write(folder: Path, text: str, name: str = "config") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def config(*, cluster: str = "", user: str = "", server: str = "https://api:6443") -> str:
    return f"""
apiVersion: v1
kind: Config
current-context: main
preferences: {{}}
clusters: [{{name: c, cluster: {{server: "{server}", {cluster}}}}}]
users: [{{name: u, user: {{{user}}}}}]
contexts: [{{name: main, context: {{cluster: c, user: u, namespace: x}}}}]
"""


def problem(folder: Path, text: str, *, master: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        access_from(read_kubeconfig([write(folder, text)]), master)
    return str(caught.value)


def test_a_token_and_inline_certificates_are_taken_over(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    text = config(
        cluster=f"certificate-authority-data: {data}, tls-server-name: api.test",
        user=f"token: secret, client-certificate-data: {data}, client-key-data: {data}",
    )
    access = access_from(read_kubeconfig([write(tmp_path, text)]))
    assert access.server == "https://api:6443"
    assert access.token == "secret"
    assert access.tls == Tls(
        ca_data=b"PEM", cert_data=b"PEM", key_data=b"PEM", server_name="api.test"
    )


def test_relative_paths_count_from_their_own_file(tmp_path: Path) -> None:
    for name in ("ca.crt", "c.crt", "c.key", "token"):
        (tmp_path / name).write_text("x")
    text = config(
        cluster="certificate-authority: ca.crt",
        user="client-certificate: c.crt, client-key: ./c.key, tokenFile: token",
    )
    access = access_from(read_kubeconfig([write(tmp_path, text)]))
    assert access.tls.files == tuple(str(tmp_path / n) for n in ("ca.crt", "c.crt", "c.key"))
    assert access.token_file == str(tmp_path / "token")


def test_of_several_files_the_first_that_names_a_thing_wins(tmp_path: Path) -> None:
    first = write(tmp_path, "users: [{name: u, user: {token: first}}]", "a")
    second = write(tmp_path, config(user="token: second"), "b")
    access = access_from(read_kubeconfig([first, second]))
    assert (access.token, access.server) == ("first", "https://api:6443")


def test_a_list_of_files_is_split_unless_it_is_the_name_of_one(tmp_path: Path) -> None:
    assert split_paths("/a:/b") == ("/a", "/b")
    odd = write(tmp_path, "", "x:y")
    assert split_paths(odd) == (odd,)


def test_master_replaces_the_server_and_keeps_the_credentials(tmp_path: Path) -> None:
    loaded = read_kubeconfig([write(tmp_path, config(user="token: t"))])
    access = access_from(loaded, "https://10.0.0.1:6443/")
    assert (access.server, access.token) == ("https://10.0.0.1:6443", "t")


def test_a_plugin_with_its_cluster_settings(tmp_path: Path) -> None:
    text = config(
        cluster=(
            "extensions: [{name: client.authentication.k8s.io/exec, extension: {audience: x}}]"
        ),
        user=(
            "exec: {command: ./login, apiVersion: client.authentication.k8s.io/v1, "
            "interactiveMode: Never, args: [a, b], env: [{name: K, value: v}], "
            "provideClusterInfo: true, installHint: get it}"
        ),
    )
    access = access_from(read_kubeconfig([write(tmp_path, text)]))
    assert access.plugin == ExecSpec(
        command=str(tmp_path / "login"),
        api_version="client.authentication.k8s.io/v1",
        arguments=("a", "b"),
        environment=(("K", "v"),),
        install_hint="get it",
        provides_cluster_info=True,
        cluster_config=b'{"audience":"x"}',
    )


def test_impersonation_becomes_headers(tmp_path: Path) -> None:
    text = config(user="as: bob, as-uid: '7', as-groups: [g], as-user-extra: {k: [v]}")
    access = access_from(read_kubeconfig([write(tmp_path, text)]))
    assert access.impersonation == (
        ("Impersonate-User", "bob"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "g"),
        ("Impersonate-Extra-k", "v"),
    )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=f"^stat {path}: no such file or directory$"):
        read_kubeconfig([path])


@pytest.mark.parametrize("text", ["a: [", "[]", "clusters: 3", "- x\n"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_kubeconfig([path])
    assert str(caught.value).startswith(f'error loading config file "{path}": ')


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        read_kubeconfig([str(tmp_path)])


CERT_DATA = "client-certificate-data: eA=="
EXEC = "command: x, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "current-context: gone",
            "[context was not found for specified context: gone, cluster has no server defined]",
        ),
        (config(server=""), 'no server found for cluster "c"'),
        (
            "current-context: m\ncontexts: [{name: m, context: {cluster: a, user: b}}]",
            '[user "b" was not found for context "m", cluster "a" was not found for context "m", '
            'no server found for cluster "a"]',
        ),
        (
            config(cluster="proxy-url: 'ftp://x'"),
            'invalid \'proxy-url\' "ftp://x" for cluster "c": unsupported scheme "ftp", '
            'must be one of "http", "https", "socks5"',
        ),
        (
            config(cluster="certificate-authority: /x, certificate-authority-data: eA=="),
            "certificate-authority-data and certificate-authority are both specified for c. "
            "certificate-authority-data will override.",
        ),
        (
            config(cluster="certificate-authority: /nowhere/ca"),
            "unable to read certificate-authority /nowhere/ca for c due to open /nowhere/ca: "
            "no such file or directory",
        ),
        (
            config(cluster="certificate-authority-data: eA==, insecure-skip-tls-verify: true"),
            "specifying a root certificates file with the insecure flag is not allowed",
        ),
        (
            config(cluster="certificate-authority-data: '%%'"),
            "certificate-authority-data of c is not base64: encode the PEM text with base64 -w0",
        ),
        (
            config(user=CERT_DATA),
            "client-key-data or client-key must be specified for u to use the clientCert "
            "authentication method.",
        ),
        (
            config(user=f"{CERT_DATA}, client-certificate: /x, client-key-data: eA=="),
            "client-cert-data and client-cert are both specified for u. "
            "client-cert-data will override.",
        ),
        (
            config(user=f"{CERT_DATA}, client-key: /x, client-key-data: eA=="),
            "client-key-data and client-key are both specified for u; "
            "client-key-data will override",
        ),
        (
            config(user="client-certificate: /no/c, client-key: /no/k"),
            "[unable to read client-cert /no/c for u due to open /no/c: no such file or directory,"
            " unable to read client-key /no/k for u due to open /no/k: no such file or directory]",
        ),
        (
            config(user="token: x, username: me, password: z"),
            "more than one authentication method found for u; found [token basicAuth], "
            "only one is allowed",
        ),
        (
            config(user="auth-provider: {name: gcp}"),
            'no Auth Provider found for name "gcp": replace the auth-provider of user u by an '
            "exec plugin or a token",
        ),
        (
            config(user=f"auth-provider: {{name: gcp}}, exec: {{{EXEC}}}"),
            "[authProvider cannot be provided in combination with an exec plugin for u, "
            'no Auth Provider found for name "gcp": replace the auth-provider of user u by an '
            "exec plugin or a token]",
        ),
        (
            config(user="exec: {}"),
            "[command must be specified for u to use exec authentication plugin, "
            "apiVersion must be specified for u to use exec authentication plugin]",
        ),
        (
            config(user="exec: {command: x, apiVersion: client.authentication.k8s.io/v1}"),
            "interactiveMode must be specified for u to use exec authentication plugin",
        ),
        (
            config(user=f"exec: {{{EXEC.replace('Never', 'Always')}}}"),
            "exec plugin of u wants interactiveMode Always, but a daemon has no terminal; "
            "use Never or IfAvailable",
        ),
        (
            config(user=f"exec: {{{EXEC.replace('Never', 'Sometimes')}}}"),
            "invalid interactiveMode for u: Sometimes",
        ),
        (
            config(user=f"exec: {{{EXEC.replace('/v1,', '/v1alpha1,')}}}"),
            'exec plugin: invalid apiVersion "client.authentication.k8s.io/v1alpha1"; use '
            "client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1",
        ),
        (
            config(user="as-groups: [x]"),
            "requesting uid, groups or user-extra for u without impersonating a user",
        ),
    ],
)
def test_what_is_wrong_with_the_chosen_context(tmp_path: Path, text: str, message: str) -> None:
    assert problem(tmp_path, text) == f"invalid configuration: {message}"


@pytest.mark.parametrize(
    "server",
    [
        "https://CONTROL_PLANE_ADDRESS:6443",
        "CONTROL_PLANE_ADDRESS",
        "https://<control-plane>:6443",
        "https://${API_SERVER}:6443",
        "https://{{ .Values.server }}",
    ],
)
def test_a_placeholder_ends_the_start_with_what_to_write_and_where(
    tmp_path: Path, server: str
) -> None:
    text = problem(tmp_path, config(server=server))
    assert f'server "{server}" of cluster "c" has a placeholder: write the address of' in text
    assert f"as clusters[].cluster.server into {tmp_path}" in text


@pytest.mark.parametrize(
    "server", ["https://API.EXAMPLE.ORG:6443", "https://a_b:6443", "https://h/A_B", "HOST"]
)
def test_an_unusual_server_is_no_placeholder(tmp_path: Path, server: str) -> None:
    access_from(read_kubeconfig([write(tmp_path, config(server=server))]))


@pytest.mark.parametrize(
    ("server", "tls", "expected"),
    [
        ("10.0.0.1:8080", Tls(), "http://10.0.0.1:8080"),
        ("10.0.0.1", Tls(is_insecure=True), "https://10.0.0.1"),
        ("api:6443", Tls(ca_file="/ca"), "https://api:6443"),
        ("https://[fd00::1]:6443/", Tls(), "https://[fd00::1]:6443"),
        ("https://lb/clusters/a/", Tls(), "https://lb/clusters/a"),
    ],
)
def test_a_server_gets_a_scheme_and_keeps_its_path(server: str, tls: Tls, expected: str) -> None:
    assert normalise_server(server, tls) == expected


@pytest.mark.parametrize("server", ["ftp://x", "https://", "https://x:port", "https://x?y=z"])
def test_a_server_that_is_no_address_is_refused(server: str) -> None:
    with pytest.raises(ConfigError, match="host must be a URL or a host:port pair"):
        normalise_server(server, Tls())
