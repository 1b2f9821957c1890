"""Runs inside a guest kernel: what a mode's check says while modules are hidden from the kernel."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable
from importlib import import_module
from pathlib import Path

from kpctl.look.sentences import format_sentence
from kubeproxy.errors import ProxyError
from kubeproxy.facts.ids import Family
from kubeproxy.logs import Entry
from kubeproxy.logs.handler import LogHandler
from kubeproxy.modes.nftables.check import SKIP_VARIABLE
from kubeproxy.modes.registry import load_mode

HIDDEN = Path("/run/modprobe.d/hidden.conf")
"""modprobe reads it, see `kpctl.places.guest`."""


def messages(mode: str, hidden: list[str]) -> object:
    """The messages of the check while some of these modules are hidden.

    Whatever a message names comes back before the next attempt, so the last is empty unless
    something else is missing. A module that is loaded already cannot be hidden.
    """
    loaded = {line.split()[0] for line in Path("/proc/modules").read_text().splitlines()}
    assert not loaded & set(hidden), f"already loaded: {loaded & set(hidden)}"
    os.environ[SKIP_VARIABLE] = "1"
    said: list[str] = []
    while not said or said[-1]:
        HIDDEN.write_text("".join(f"install {name} /bin/false\n" for name in hidden))
        said.append(_check(mode))
        left = [name for name in hidden if name not in said[-1]]
        if said[-1] and left == hidden:
            break
        hidden = left
    HIDDEN.unlink()
    return said


def refusal(mode: str) -> object:
    """What the check of a mode raises or logs with all modules, and with this kernel's release."""
    return _check(mode)


def _check(mode: str) -> str:
    options = import_module(f"kubeproxy.modes.{mode}.options").Options()
    logged = _Logged()
    logging.getLogger().handlers = [logged]
    try:
        asyncio.run(_await(load_mode(mode).check(tuple(Family), options)))
    except ProxyError as error:
        return str(error)
    return " ".join(logged.texts)


class _Logged(LogHandler):
    """Collects what is logged."""

    def __init__(self) -> None:
        super().__init__(sys.stderr, format_sentence, accepts=lambda _: True)
        self.texts: list[str] = []

    def write(self, entry: Entry) -> None:
        self.texts.append(format_sentence(entry))


async def _await(checked: Awaitable[None]) -> None:
    await checked
