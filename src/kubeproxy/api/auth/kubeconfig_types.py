"""The fields of a kubeconfig file that are read, in the file's own spelling.

Unknown fields are passed over. Every field may be missing; `kubeconfig_rules` checks which must
not.
"""

from __future__ import annotations

import msgspec


class Extension(msgspec.Struct, frozen=True):
    name: str
    extension: dict[str, object] | None = None


class Cluster(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """A server as a kubeconfig describes it."""

    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: tuple[Extension, ...] | None = None


class EnvVar(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class Exec(msgspec.Struct, frozen=True, rename="camel"):
    """A credential plugin as a kubeconfig describes it."""

    command: str = ""
    api_version: str = ""
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class AuthProvider(msgspec.Struct, frozen=True):
    name: str = ""


class User(msgspec.Struct, frozen=True, rename="kebab"):
    """A way to log in as a kubeconfig describes it."""

    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    as_: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: tuple[str, ...] | None = None
    as_user_extra: dict[str, tuple[str, ...]] | None = None
    username: str = ""
    password: str = ""
    auth_provider: AuthProvider | None = None
    exec: Exec | None = None


class Context(msgspec.Struct, frozen=True):
    """A pair of cluster and user."""

    cluster: str = ""
    user: str = ""


class Entry(msgspec.Struct, frozen=True):
    name: str


class NamedCluster(Entry, frozen=True):
    cluster: Cluster | None = None


class NamedUser(Entry, frozen=True):
    user: User | None = None


class NamedContext(Entry, frozen=True):
    context: Context | None = None


class File(msgspec.Struct, frozen=True, rename="kebab"):
    clusters: tuple[NamedCluster, ...] | None = None
    users: tuple[NamedUser, ...] | None = None
    contexts: tuple[NamedContext, ...] | None = None
    current_context: str = ""
