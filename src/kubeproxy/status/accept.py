"""Reading HTTP Accept headers, for the paths that answer in more than one format. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Clause(msgspec.Struct, frozen=True):
    """One media type the client takes, with its parameters."""

    media_type: str
    params: Mapping[str, str]
    quality: float


def parse_accept(header: str) -> list[Clause]:
    """The clauses, most wanted first; equals keep their order."""
    clauses = [_clause(part) for part in header.split(",") if part.strip()]
    return sorted(clauses, key=lambda c: -c.quality)


def _clause(text: str) -> Clause:
    media_type, *rest = (piece.strip() for piece in text.split(";"))
    pairs = (piece.partition("=") for piece in rest if piece)
    params = {k.strip(): v.strip().strip('"') for k, _, v in pairs}
    return Clause(media_type.lower(), params, _quality(params.pop("q", "1")))


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding header takes gzip."""
    return any(c.media_type == "gzip" and c.quality > 0 for c in parse_accept(header))
