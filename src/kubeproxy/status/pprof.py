"""Profiles in the format of `go tool pprof`, or as folded stacks for people and flame graphs.

A profile is a mapping from stack (outermost call first) to values. Pure: measuring is in
`profiling`.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from kubeproxy.status.protobuf import message_field, packed_field, text_field, varint_field


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One call: function, file and line."""

    function: str
    file: str
    line: int


Stack: TypeAlias = tuple[Frame, ...]


class Profile(msgspec.Struct, frozen=True):
    """Values per stack. `kinds` name the values with their units, as in (("cpu", "ns"),)."""

    kinds: tuple[tuple[str, str], ...]
    samples: Mapping[Stack, tuple[int, ...]]
    duration_ns: int = 0


def format_folded(profile: Profile) -> bytes:
    """Format one line per stack, heaviest first: `outer;inner 42`, the last kind of value."""
    ranked = sorted(profile.samples.items(), key=lambda item: -item[1][-1])
    lines = (f"{';'.join(map(_label, stack))} {values[-1]}\n" for stack, values in ranked)
    unit = "/".join(profile.kinds[-1])
    return f"# {unit}\n{''.join(lines)}".encode()


def _label(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"


class _Numbers:
    """Gives each distinct value a number, in order of first use."""

    def __init__(self, *first: object) -> None:
        self.held: dict[object, int] = {value: i for i, value in enumerate(first)}

    def of(self, value: object) -> int:
        return self.held.setdefault(value, len(self.held))


def encode_pprof(profile: Profile) -> bytes:
    """Encode as profile.proto, compressed.

    Profile: sample_type 1, sample 2, location 4, function 5, string_table 6, duration_nanos 10.
    Location and function numbers start at 1; string 0 is empty.
    """
    strings, functions, locations = _Numbers(""), _Numbers(None), _Numbers(None)
    out = [
        message_field(1, varint_field(1, strings.of(kind)) + varint_field(2, strings.of(unit)))
        for kind, unit in profile.kinds
    ]
    for stack, values in profile.samples.items():
        # pprof wants the innermost call first.
        numbers = [locations.of(frame) for frame in reversed(stack)]
        out.append(message_field(2, packed_field(1, numbers) + packed_field(2, values)))
    out += _locations(locations, functions)
    out += _functions(functions, strings)
    out += [text_field(6, str(s)) for s in strings.held]
    out.append(varint_field(10, profile.duration_ns))
    return gzip.compress(b"".join(out), mtime=0)


def _locations(locations: _Numbers, functions: _Numbers) -> list[bytes]:
    """Encode every Location: id 1, line 4 (function_id 1, line 2)."""
    out = []
    for frame, number in locations.held.items():
        if isinstance(frame, Frame):
            function = functions.of((frame.function, frame.file))
            line = varint_field(1, function) + varint_field(2, frame.line)
            out.append(message_field(4, varint_field(1, number) + message_field(4, line)))
    return out


def _functions(functions: _Numbers, strings: _Numbers) -> list[bytes]:
    """Encode every Function: id 1, name 2, system_name 3, filename 4."""
    out = []
    for key, number in functions.held.items():
        if isinstance(key, tuple):
            name, file = strings.of(key[0]), strings.of(key[1])
            fields = varint_field(1, number) + varint_field(2, name)
            out.append(message_field(5, fields + varint_field(3, name) + varint_field(4, file)))
    return out
