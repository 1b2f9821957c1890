"""The corpus: small files, one folder per target."""

from __future__ import annotations

from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def corpus_of(target: str) -> list[bytes]:
    """The inputs that are kept for a target, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))]
