"""JSON from outside → typed values, whatever it holds. Pure.

msgspec skips fields that no type declares, but it recurses while it skips: a field nested a
thousand levels deep ends in `RecursionError` although the field is not needed. An API server stores
such a field (`metadata.managedFields` may hold one), so it must cost its object nothing.

When the decoder refuses a text, containers nested more than `MOST_LEVELS` deep are replaced by a
short string, escaped lone surrogates (JSON allows them, text does not) by the replacement
character, and the text is decoded once more. Finding them needs no recursion and linear time. A
text that the decoder accepts costs nothing extra.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

import msgspec

MOST_LEVELS = 64
"""Objects of the API need ten. The decoder's own limit is near a thousand, less the call stack."""

CUT = b'"nested too deeply, left out"'
"""What stands in a repaired text in place of a container."""

# All quantifiers are possessive: the engine never goes back, which keeps the time linear.
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FILLER = rb'[^"\[\]{}]++|' + _STRING
_FLAT = rb"[\[{](?:" + _FILLER + rb")*+[\]}]"
_BRACKETS = re.compile(rb"(?:" + _FILLER + rb"|" + _FLAT + rb")*+([\[{]++|[\]}]++)", re.DOTALL)
"""The next brackets of one direction. A container without others inside is passed over."""
_PAIR = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_SURROGATE = rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
_LONE = re.compile(
    rb"(?:[^\\]++|" + _PAIR + rb"|(?!" + _SURROGATE + rb")\\.)*+(" + _SURROGATE + rb")", re.DOTALL
)
"""The next escaped half of a character. An escaped backslash is passed over."""

T = TypeVar("T")


class NotJson(ValueError):
    """The text is not JSON, or does not have the wanted shape."""


class Parsed(msgspec.Struct, Generic[T], frozen=True):
    """A value, and whether parts of the text were replaced to get it."""

    value: T
    is_repaired: bool = False


def parse_json(decoder: msgspec.json.Decoder[T], text: bytes | msgspec.Raw) -> Parsed[T]:
    """Decode a text. Raises `NotJson`, and nothing else, if it cannot be decoded."""
    try:
        return Parsed(decoder.decode(text))
    except msgspec.ValidationError as error:
        raise NotJson(str(error)) from error
    # Whatever one text makes the decoder raise is the fault of this text.
    except Exception as error:
        refusal = error
    try:
        return Parsed(decoder.decode(repair_json(bytes(text))), is_repaired=True)
    except Exception as error:
        raise NotJson(str(error) or type(error).__name__) from refusal


def repair_json(text: bytes) -> bytes:
    """Return the text with deep containers and lone surrogates replaced."""
    return _replace_surrogates(cut_deep(text))


def cut_deep(text: bytes, most_levels: int = MOST_LEVELS) -> bytes:
    """Return the text with `CUT` for each container that is inside of so many others."""
    pieces: list[bytes] = []
    start = at = depth = 0
    while found := _BRACKETS.match(text, at):
        place, at = found.span(1)
        before, depth = depth, depth + (at - place if text[place] in b"[{" else place - at)
        if before <= most_levels < depth:
            pieces += (text[start : place + most_levels - before], CUT)
        elif depth <= most_levels < before:
            start = place + before - most_levels
    if depth <= most_levels:
        pieces.append(text[start:])
    return b"".join(pieces)


def _replace_surrogates(text: bytes) -> bytes:
    pieces: list[bytes] = []
    at = 0
    while found := _LONE.match(text, at):
        pieces += (text[at : found.start(1)], rb"\ufffd")
        at = found.end()
    return b"".join((*pieces, text[at:])) if pieces else text
