"""HTTP Accept headers (RFC 9110, section 12.5), for the paths that serve more than one format.

Parsing only, and lenient: which range is served is decided where the formats are known. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class MediaRange(msgspec.Struct, frozen=True):
    """One media type the client accepts, with its parameters."""

    media_type: str
    params: Mapping[str, str]
    quality: float


def parse_accept(header: str) -> list[MediaRange]:
    """Return the media ranges, best quality first. Equals keep their order."""
    ranges = [_media_range(part) for part in header.split(",") if part.strip()]
    return sorted(ranges, key=lambda r: -r.quality)


def _media_range(text: str) -> MediaRange:
    media_type, *rest = (piece.strip() for piece in text.split(";"))
    pairs = (piece.partition("=") for piece in rest if piece)
    params = {k.strip(): v.strip().strip('"') for k, _, v in pairs}
    return MediaRange(media_type.lower(), params, _quality(params.pop("q", "1")))


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0


def accepts_gzip(header: str) -> bool:
    """Does an Accept-Encoding header accept gzip?"""
    return any(r.media_type == "gzip" and r.quality > 0 for r in parse_accept(header))
