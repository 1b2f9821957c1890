"""`host:port` split as Go's `net.SplitHostPort` does, with its error texts.

Joining needs no rules of its own and is `facts.address.join_host_port`.
"""

from __future__ import annotations


def split_host_port(text: str) -> tuple[str, str]:
    """Split `host:port` or `[host]:port`. Neither part is checked, and both may be empty.

    Raises ValueError whose text is Go's error text.
    """
    if not text:
        raise ValueError("missing port in address")
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"address {text}: missing port in address")
    if text.startswith("["):
        return _split_bracketed(text, port)
    if ":" in host:
        raise ValueError(f"address {text}: too many colons in address")
    for bracket in "[]":
        if bracket in text:
            raise ValueError(f"address {text}: unexpected '{bracket}' in address")
    return host, port


def _split_bracketed(text: str, port: str) -> tuple[str, str]:
    end = text.find("]")
    if end < 0:
        raise ValueError(f"address {text}: missing ']' in address")
    if end + 1 == len(text) or text[end + 1] != ":":
        raise ValueError(f"address {text}: missing port in address")
    if end + 1 != text.rfind(":"):
        raise ValueError(f"address {text}: too many colons in address")
    host = text[1:end]
    if "[" in host or "[" in port:
        raise ValueError(f"address {text}: unexpected '[' in address")
    if "]" in port:
        raise ValueError(f"address {text}: unexpected ']' in address")
    return host, port
