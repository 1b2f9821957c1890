"""Runs inside a guest kernel: its network card gets an address."""

from __future__ import annotations

import subprocess


def configure(card: str, address: str) -> object:
    """Return what `ip` printed that is wrong."""
    # The card is in the first network namespace, not in that of the call.
    lines = f"link set {card} up\naddr add {address} dev {card}\n"
    first = ["nsenter", "--net=/proc/1/ns/net", "ip", "-batch", "-"]
    return subprocess.run(first, input=lines, capture_output=True, text=True).stderr
