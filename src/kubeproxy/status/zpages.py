"""`/flagz` and `/statusz`: what runs here, for people as text and for tools as JSON or YAML.

The text is deliberately not for machines: upstream varies its separator at random so that no tool
comes to parse it, and so do we, with the choice as an argument. Tools name the versioned object
they want in their Accept header. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kubeproxy.go.time import NANO, format_rfc3339, format_unix_date, format_uptime
from kubeproxy.status.accept import MediaRange, parse_accept
from kubeproxy.status.http import JSON, NOSNIFF, TEXT, Response

COMPONENT = "kube-proxy"
SEPARATORS = (":", ": ", "=", " ")
_GROUP = "config.k8s.io"
_CURRENT, _DEPRECATED = "v1beta1", "v1alpha1"
_NOTICE = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting "
    "compatibility guarantees and is for debugging purposes only."
)


class RunningVersion(msgspec.Struct, frozen=True, gc=False):
    """The facts about the program that `/statusz` shows."""

    started_ns: int
    runtime: str
    binary: str
    emulation: str
    distribution: str = ""
    """This program by its own name and version, which upstream's page has no place for."""


class ObjectFormat(msgspec.Struct, frozen=True, gc=False):
    """The encoding and version of the object that a tool asks for."""

    media_type: str
    version: str


def flagz(flags: Mapping[str, str], accept: str, *, separator: str) -> Response:
    """Show every flag with its value on the command line."""
    wanted = _negotiate(accept, "Flagz")
    if wanted is None:
        return _not_acceptable()
    if isinstance(wanted, ObjectFormat):
        return _object(wanted, "Flagz", {"flags": dict(sorted(flags.items()))})
    lines = "".join(f"{name}{separator}{flags[name]}\n" for name in sorted(flags))
    return _page("flagz", lines)


def statusz(
    version: RunningVersion, paths: Sequence[str], accept: str, *, now_ns: int, separator: str
) -> Response:
    """Show since when the program runs, and which version."""
    wanted = _negotiate(accept, "Statusz")
    if wanted is None:
        return _not_acceptable()
    up = max(now_ns - version.started_ns, 0) // NANO
    if isinstance(wanted, ObjectFormat):
        return _object(wanted, "Statusz", _status_fields(version, paths, up))
    rows = {
        "Started": format_unix_date(version.started_ns),
        "Up": format_uptime(up),
        "Go version": version.runtime,
        "Binary version": version.binary,
        "Emulation version": version.emulation,
        **({"Distribution": version.distribution} if version.distribution else {}),
        "Paths": " ".join(paths),
    }
    return _page("statusz", "".join(f"{k}{separator} {v}\n" for k, v in rows.items()))


def _status_fields(version: RunningVersion, paths: Sequence[str], up: int) -> dict[str, object]:
    return {
        "startTime": format_rfc3339(version.started_ns),
        "uptimeSeconds": up,
        "goVersion": version.runtime,
        "binaryVersion": version.binary,
        "emulationVersion": version.emulation,
        **({"distribution": version.distribution} if version.distribution else {}),
        "paths": list(paths),
    }


def _negotiate(accept: str, kind: str) -> ObjectFormat | str | None:
    """Return the best format that both sides have: an object, `text`, or None."""
    if not accept.strip():
        return "text"
    for accepted in parse_accept(accept):
        if accepted.media_type in ("*/*", "text/*", "text/plain"):
            return "text"
        if _is_object(accepted, kind):
            return ObjectFormat(accepted.media_type, accepted.params["v"])
    return None


def _is_object(accepted: MediaRange, kind: str) -> bool:
    return (
        accepted.media_type in ("application/json", "application/yaml")
        and accepted.params.get("g") == _GROUP
        and accepted.params.get("as") == kind
        and accepted.params.get("v") in (_CURRENT, _DEPRECATED)
    )


def _page(name: str, lines: str) -> Response:
    body = f"\n{COMPONENT} {name}\n{_NOTICE}\n\n{lines}"
    return Response(body.encode(), 200, (TEXT, NOSNIFF))


def _object(wanted: ObjectFormat, kind: str, fields: Mapping[str, object]) -> Response:
    group_version = f"{_GROUP}/{wanted.version}"
    value = {"kind": kind, "apiVersion": group_version, "metadata": {"name": COMPONENT}, **fields}
    content_type = f"{wanted.media_type};g={_GROUP};v={wanted.version};as={kind}"
    headers: tuple[tuple[str, str], ...] = (("Content-Type", content_type), NOSNIFF)
    if wanted.version == _DEPRECATED:
        warning = f"{group_version} {kind} is deprecated; use {_GROUP}/{_CURRENT} {kind}"
        headers += (("Warning", f'299 - "{warning}"'),)
    return Response(_encode(wanted.media_type, value), 200, headers)


def _encode(media_type: str, value: Mapping[str, object]) -> bytes:
    if media_type == "application/yaml":
        return msgspec.yaml.encode(value)
    return msgspec.json.encode(value) + b"\n"


def _not_acceptable() -> Response:
    types = "application/json, application/yaml, text/plain"
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"only the following media types are accepted: {types}",
        "reason": "NotAcceptable",
        "code": 406,
    }
    return Response(msgspec.json.encode(status) + b"\n", 406, (JSON, NOSNIFF))
