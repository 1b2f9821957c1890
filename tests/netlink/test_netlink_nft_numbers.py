"""The kernel's numbers in `kernel.nftables.wire`, held against the kernel's own header."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kubeproxy.kernel.nftables import wire

HEADER = Path("/usr/include/linux/netfilter/nf_tables.h")


NEWER = {"NFTA_SET_COUNT": 20}
"""Numbers that headers of older kernels lack."""

NUMBER = re.compile(r"\(?(0x[0-9a-f]+|-?\d+)U?(?: << (\d+))?\)?")


def enumerated(text: str) -> dict[str, int]:
    """The enumeration constants of a C header whose values are written as numbers, if at all."""
    found: dict[str, int] = {}
    plain = re.sub(r"/\*.*?\*/|^#.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    for body in re.findall(r"enum \w+ \{(.*?)\}", plain, flags=re.DOTALL):
        number = -1
        for name, value in re.findall(r"(\w+)(?:\s*=\s*([^,]+))?", body):
            written = NUMBER.fullmatch(value.strip())
            number = int(written[1], 0) << int(written[2] or 0) if written else number + 1
            found[name] = number
    return found


@pytest.mark.skipif(not HEADER.exists(), reason="the kernel's headers are not installed")
def test_numbers_are_the_kernels() -> None:
    """A wrong one would be a rule that does something else."""
    kernel = enumerated(HEADER.read_text())
    ours = {name: value for name, value in vars(wire).items() if name.startswith(("NFT_", "NFTA_"))}
    known = {name: kernel.get(name, NEWER.get(name)) for name in ours}
    assert known == ours
    messages = {name for name in vars(wire) if re.fullmatch(r"(NEW|GET|DEL)[A-Z]+", name)}
    assert {n: kernel[f"NFT_MSG_{n}"] for n in messages} == {n: vars(wire)[n] for n in messages}
