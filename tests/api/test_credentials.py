"""Finding credentials, and using them as they are at the moment of a request."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import pytest
from tests.support.recorded import RecordedRequests

from kpctl.apiserver.pki import Pki, openssl
from kubeproxy.api.auth.access import Access, Tls
from kubeproxy.api.auth.credentials import Credentials, find_access
from kubeproxy.api.auth.tls import build_context
from kubeproxy.errors import ConfigError, Unavailable

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def credentials(access: Access) -> Credentials:
    return Credentials(access, observer=RecordedRequests())


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("pod-token\n")
    (folder / "ca.crt").write_text("CA")
    return folder


def test_without_flags_the_service_account_is_used(service_account: Path) -> None:
    found = find_access(environment=IN_CLUSTER, service_account=service_account)
    assert found.access == Access(
        server="https://10.96.0.1:443",
        tls=Tls(ca_file=str(service_account / "ca.crt")),
        token_file=str(service_account / "token"),
    )
    assert found.warnings == ()


def test_a_pod_without_an_authority_trusts_the_system_and_warns(service_account: Path) -> None:
    (service_account / "ca.crt").unlink()
    found = find_access(environment=IN_CLUSTER, service_account=service_account)
    assert not found.access.tls.has_ca
    assert f"{service_account}/ca.crt is missing" in found.warnings[0]


def test_an_ipv6_service_host_is_bracketed(service_account: Path) -> None:
    env = IN_CLUSTER | {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    found = find_access(environment=env, service_account=service_account)
    assert found.access.server == "https://[fd00::1]:443"


@pytest.mark.parametrize("missing", sorted(IN_CLUSTER))
def test_outside_a_pod_the_missing_variables_are_named(missing: str, service_account: Path) -> None:
    env = {name: value for name, value in IN_CLUSTER.items() if name != missing}
    with pytest.raises(ConfigError) as caught:
        find_access(environment=env, service_account=service_account)
    assert str(caught.value) == (
        "unable to load in-cluster configuration, "
        "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
    )


def test_a_pod_without_a_token_gets_the_name_of_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"open {tmp_path}/token: no such file or directory"):
        find_access(environment=IN_CLUSTER, service_account=tmp_path)


def test_master_alone_needs_no_credentials() -> None:
    assert find_access(master="10.0.0.1:8080").access == Access(server="http://10.0.0.1:8080")


def test_an_empty_kubeconfig_is_an_error_outside_a_pod(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("")
    with pytest.raises(ConfigError) as caught:
        find_access(kubeconfig=str(path), environment={}, service_account=tmp_path)
    assert str(caught.value) == (
        "invalid configuration: no configuration has been provided, "
        "try setting KUBERNETES_MASTER environment variable"
    )


def test_an_empty_kubeconfig_in_a_pod_means_the_service_account(service_account: Path) -> None:
    path = service_account / "config"
    path.write_text("{}")
    found = find_access(
        kubeconfig=str(path), environment=IN_CLUSTER, service_account=service_account
    )
    assert found.access.server == "https://10.96.0.1:443"


async def test_a_token_is_sent_as_bearer() -> None:
    login = await credentials(Access(server="http://x", token="t")).login()
    assert login.headers == (("Authorization", "Bearer t"),)
    assert login.context is None


async def test_a_user_name_is_sent_as_basic() -> None:
    login = await credentials(Access(server="http://x", username="u", password="p")).login()
    assert login.headers == (("Authorization", f"Basic {base64.b64encode(b'u:p').decode()}"),)


async def test_no_credentials_send_nothing() -> None:
    assert (await credentials(Access(server="http://x")).login()).headers == ()


async def test_a_rotated_token_file_is_used_at_once_and_beats_a_token(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("one")
    one = credentials(Access(server="http://x", token="fixed", token_file=str(token_file)))
    assert (await one.login()).headers == (("Authorization", "Bearer one"),)
    token_file.write_text("two\n")
    assert (await one.login()).headers == (("Authorization", "Bearer two"),)


async def test_while_a_token_file_is_away_the_last_token_is_used(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("one")
    one = credentials(Access(server="http://x", token_file=str(token_file)))
    await one.login()
    token_file.unlink()
    assert (await one.login()).headers == (("Authorization", "Bearer one"),)


async def test_a_token_file_that_never_was_is_an_error(tmp_path: Path) -> None:
    one = credentials(Access(server="http://x", token_file=str(tmp_path / "no")))
    with pytest.raises(Unavailable, match="no such file"):
        await one.login()
    with pytest.raises(ConfigError, match="no such file"):
        one.check()


async def test_an_empty_token_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ConfigError, match="read empty token"):
        credentials(Access(server="http://x", token_file=str(tmp_path / "token"))).check()


async def test_the_tls_context_is_kept_until_a_file_changes(tmp_path: Path, pki: Pki) -> None:
    certificate, key = tmp_path / "c.crt", tmp_path / "c.key"
    copy_pair(pki, "client", certificate, key)
    tls = Tls(ca_file=str(pki.ca), cert_file=str(certificate), key_file=str(key))
    one = credentials(Access(server="https://x", tls=tls))
    first = (await one.login()).context
    assert (await one.login()).context is first
    copy_pair(pki, "client2", certificate, key)
    assert (await one.login()).context is not first


async def test_a_half_rotated_pair_keeps_the_last_context(tmp_path: Path, pki: Pki) -> None:
    certificate, key = tmp_path / "c.crt", tmp_path / "c.key"
    copy_pair(pki, "client", certificate, key)
    tls = Tls(ca_file=str(pki.ca), cert_file=str(certificate), key_file=str(key))
    one = credentials(Access(server="https://x", tls=tls))
    first = (await one.login()).context
    shutil.copy(pki.pair("client2")[0], certificate)
    assert (await one.login()).context is first
    shutil.copy(pki.pair("client2")[1], key)
    assert (await one.login()).context is not first


def copy_pair(pki: Pki, name: str, certificate: Path, key: Path) -> None:
    shutil.copy(pki.pair(name)[0], certificate)
    shutil.copy(pki.pair(name)[1], key)


def test_inline_certificates_work_without_files(pki: Pki) -> None:
    certificate, key = (path.read_bytes() for path in pki.pair("client"))
    context = build_context(Tls(ca_data=pki.ca.read_bytes(), cert_data=certificate, key_data=key))
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize("data", [b"no PEM", b"\xff\xfe"])
def test_a_bad_authority_is_named(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "ca").write_bytes(data)
    with pytest.raises(ConfigError, match="unable to load root certificates: certificate-auth"):
        build_context(Tls(ca_data=data))
    with pytest.raises(ConfigError, match=f"unable to load root certificates: {tmp_path}/ca"):
        build_context(Tls(ca_file=str(tmp_path / "ca")))


def test_a_key_of_another_certificate_is_named(pki: Pki) -> None:
    certificate, key = pki.pair("client")[0], pki.pair("client2")[1]
    with pytest.raises(ConfigError, match=f"{certificate} with the key {key}: .*mismatch"):
        build_context(Tls(cert_file=str(certificate), key_file=str(key)))


def test_an_encrypted_key_does_not_ask_on_the_terminal(pki: Pki, tmp_path: Path) -> None:
    locked, key = tmp_path / "locked.key", pki.pair("client")[1]
    openssl("ec", "-in", str(key), "-aes128", "-passout", "pass:x", "-out", str(locked))
    with pytest.raises(ConfigError, match="the key is encrypted"):
        build_context(Tls(cert_file=str(pki.pair("client")[0]), key_file=str(locked)))
