"""The corpus of flows that comes with the program, and how one of them is found by name.

`kpctl lab --flow cluster-ip` runs `corpus/01-cluster-ip.yaml`: the number orders the files and may
be left out. A file of one's own is given by its path.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from kpctl.flows.flow import Flow, load_flow
from kubeproxy.errors import ConfigError

CORPUS = Path(__file__).parent / "corpus"
_NUMBER = re.compile(r"^\d+-")


@cache
def load_corpus() -> tuple[Flow, ...]:
    """Every flow of the corpus, in the order of their file names."""
    return tuple(load_flow(path) for path in _files())


def flow_names() -> tuple[str, ...]:
    """The names of all flows, without the number that orders them."""
    return tuple(short_name(path.stem) for path in _files())


def short_name(stem: str) -> str:
    """`cluster-ip` for `01-cluster-ip`."""
    return _NUMBER.sub("", stem)


def find_flow(name: str) -> Path:
    """The file of a flow, given its name in the corpus or a path. Raises ConfigError if none."""
    for path in _files():
        if name in (path.stem, short_name(path.stem)):
            return path
    given = Path(name)
    if given.is_file():
        return given
    raise ConfigError(f"{name!r} is neither a file nor one of the flows: {', '.join(flow_names())}")


def _files() -> list[Path]:
    return sorted(CORPUS.glob("*.yaml"))
