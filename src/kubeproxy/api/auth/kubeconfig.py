"""kubeconfig files: reading, merging, choosing the context, and reporting what is wrong.

Promises the rules of Kubernetes' own clients: of several files the first that names an entry wins,
relative paths are relative to their own file, inline data wins over a file, and all problems of the
chosen context are reported at once. Whether certificates and tokens can be used is left to
`credentials`.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from kubeproxy.api.auth.access import Access, ExecSpec, Tls, normalise_server
from kubeproxy.api.auth.kubeconfig_rules import check_cluster, check_placeholder, check_user
from kubeproxy.api.auth.kubeconfig_types import (
    Cluster,
    Context,
    Exec,
    File,
    NamedCluster,
    NamedUser,
    User,
)
from kubeproxy.errors import ConfigError
from kubeproxy.go.text import format_os_error
from kubeproxy.go.yaml import parse_yaml
from kubeproxy.kernel.files import read_limited

NO_CONFIGURATION = (
    "invalid configuration: no configuration has been provided, "
    "try setting KUBERNETES_MASTER environment variable"
)
MOST_BYTES = 16 << 20
"""As large as one file may be: certificates of thousands of clusters fit in."""
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"


class Kubeconfig(msgspec.Struct, frozen=True):
    """One or more files, merged, with absolute paths."""

    clusters: Mapping[str, Cluster] = {}
    users: Mapping[str, User] = {}
    contexts: Mapping[str, Context] = {}
    current_context: str = ""
    source: str = ""
    """The files, for messages."""

    @property
    def is_empty(self) -> bool:
        return not (self.clusters or self.users or self.contexts or self.current_context)


def read_kubeconfig(paths: Sequence[str]) -> Kubeconfig:
    """Read and merge the files. Raises `ConfigError` if one is missing or unreadable."""
    files = (_resolve_paths(_read_file(path), Path(path).absolute().parent) for path in paths)
    return msgspec.structs.replace(merge(files), source=", ".join(paths))


def _read_file(path: str) -> File:
    try:
        text = read_limited(path, MOST_BYTES)
    except FileNotFoundError as error:
        raise ConfigError(f"stat {path}: no such file or directory") from error
    except OSError as error:
        reason = format_os_error(error)
        raise ConfigError(f'error loading config file "{path}": open {path}: {reason}') from error
    try:
        return parse_kubeconfig(text)
    except ValueError as error:
        raise ConfigError(f'error loading config file "{path}": {error}') from error


def parse_kubeconfig(text: bytes) -> File:
    """Return the declared part of one file. Raises ValueError if it is no kubeconfig."""
    tree = parse_yaml(text).value
    return msgspec.convert({} if tree is None else tree, File, strict=False)


def _resolve_paths(file: File, folder: Path) -> File:
    def absolute(path: str) -> str:
        return str(folder / path) if path else ""

    clusters = (
        NamedCluster(named.name, _cluster_paths(named.cluster or Cluster(), absolute))
        for named in file.clusters or ()
    )
    users = (
        NamedUser(named.name, _user_paths(named.user or User(), absolute))
        for named in file.users or ()
    )
    return msgspec.structs.replace(file, clusters=tuple(clusters), users=tuple(users))


def _cluster_paths(cluster: Cluster, absolute: Callable[[str], str]) -> Cluster:
    ca_file = absolute(cluster.certificate_authority)
    return msgspec.structs.replace(cluster, certificate_authority=ca_file)


def _user_paths(user: User, absolute: Callable[[str], str]) -> User:
    exec_ = user.exec
    if exec_ is not None and "/" in exec_.command:
        exec_ = msgspec.structs.replace(exec_, command=absolute(exec_.command))
    return msgspec.structs.replace(
        user,
        client_certificate=absolute(user.client_certificate),
        client_key=absolute(user.client_key),
        token_file=absolute(user.token_file),
        exec=exec_,
    )


def merge(files: Iterable[File]) -> Kubeconfig:
    """Merge several files into one configuration. The first that names an entry wins."""
    clusters: dict[str, Cluster] = {}
    users: dict[str, User] = {}
    contexts: dict[str, Context] = {}
    current = ""
    for file in files:
        for cluster in file.clusters or ():
            clusters.setdefault(cluster.name, cluster.cluster or Cluster())
        for user in file.users or ():
            users.setdefault(user.name, user.user or User())
        for context in file.contexts or ():
            contexts.setdefault(context.name, context.context or Context())
        current = current or file.current_context
    return Kubeconfig(clusters, users, contexts, current)


def access_from(config: Kubeconfig, master: str = "") -> Access:
    """Return the access that the current context describes, with `master` as server if given.

    Raises `ConfigError` with all problems.
    """
    problems, context = _choose_context(config)
    cluster = config.clusters.get(context.cluster, Cluster())
    user = config.users.get(context.user, User())
    if master:
        cluster = msgspec.structs.replace(cluster, server=master)
    problems += check_placeholder(context.cluster, cluster, config.source)
    problems += check_cluster(context.cluster, cluster) + check_user(context.user, user)
    if problems:
        text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
        raise ConfigError(f"invalid configuration: {text}")
    return _build_access(cluster, user)


def _choose_context(config: Kubeconfig) -> tuple[list[str], Context]:
    name = config.current_context
    if not name:
        return [], Context()
    context = config.contexts.get(name)
    if context is None:
        return [f"context was not found for specified context: {name}"], Context()
    problems = []
    if context.user and context.user not in config.users:
        problems.append(f'user "{context.user}" was not found for context "{name}"')
    if context.cluster and context.cluster not in config.clusters:
        problems.append(f'cluster "{context.cluster}" was not found for context "{name}"')
    return problems, context


def _build_access(cluster: Cluster, user: User) -> Access:
    tls = Tls(
        ca_file=cluster.certificate_authority,
        ca_data=base64.b64decode(cluster.certificate_authority_data),
        cert_file=user.client_certificate,
        cert_data=base64.b64decode(user.client_certificate_data),
        key_file=user.client_key,
        key_data=base64.b64decode(user.client_key_data),
        server_name=cluster.tls_server_name,
        is_insecure=cluster.insecure_skip_tls_verify,
    )
    return Access(
        server=normalise_server(cluster.server, tls),
        tls=tls,
        token=user.token,
        token_file=user.token_file,
        username=user.username,
        password=user.password,
        plugin=_build_plugin(cluster, user.exec) if user.exec else None,
        proxy_url=cluster.proxy_url,
        impersonation=_impersonation(user),
        disables_compression=cluster.disable_compression,
    )


def _build_plugin(cluster: Cluster, exec_: Exec) -> ExecSpec:
    extension = next(
        (entry.extension for entry in cluster.extensions or () if entry.name == _EXEC_EXTENSION),
        None,
    )
    return ExecSpec(
        command=exec_.command,
        api_version=exec_.api_version,
        arguments=exec_.args or (),
        environment=tuple((variable.name, variable.value) for variable in exec_.env or ()),
        install_hint=exec_.install_hint,
        provides_cluster_info=exec_.provide_cluster_info,
        cluster_config=b"" if extension is None else msgspec.json.encode(extension),
    )


def _impersonation(user: User) -> tuple[tuple[str, str], ...]:
    if not user.as_:
        return ()
    headers = [("Impersonate-User", user.as_)]
    if user.as_uid:
        headers.append(("Impersonate-Uid", user.as_uid))
    headers += [("Impersonate-Group", group) for group in user.as_groups or ()]
    headers += [
        (f"Impersonate-Extra-{name}", value)
        for name, values in sorted((user.as_user_extra or {}).items())
        for value in values
    ]
    return tuple(headers)


def split_paths(kubeconfig: str) -> tuple[str, ...]:
    """Return the files that a `--kubeconfig` value names: one, or several as in $KUBECONFIG.

    The name of an existing file is not split, even if it has a colon.
    """
    if os.pathsep not in kubeconfig or Path(kubeconfig).exists():
        return (kubeconfig,)
    return tuple(part for part in kubeconfig.split(os.pathsep) if part)
