"""Man pages of both commands, in roff, from the same tables as the reference. Pure."""

from __future__ import annotations

from itertools import groupby

from kpctl.completion.program import Command, Option
from kubeproxy.config.usage import DESCRIPTION
from kubeproxy.version import KUBERNETES_VERSION, PACKAGE_VERSION

_FILES_OF_PROXY = (
    ("/var/lib/kube-proxy/config.conf", "the configuration, where kubeadm mounts it"),
    ("/run/xtables.lock", "the lock of the iptables tools"),
)
_EXITS_OF_PROXY = (("0", "done, or ended by a signal"), ("1", "wrong arguments, or failed"))


def kube_proxy_page(program: Command) -> str:
    """kube-proxy(8)."""
    groups = groupby(program.options, lambda option: option.group)
    options = [f".SS {_text(name)}\n{_options(tuple(found))}" for name, found in groups]
    return _page(
        program,
        f".SH SYNOPSIS\n.B kube-proxy\n[\\fIflags\\fR]\n.SH DESCRIPTION\n{_text(DESCRIPTION)}",
        ".SH OPTIONS",
        *options,
        ".SH FILES\n"
        + "\n".join(_entry(f"\\fI{name}\\fR", what) for name, what in _FILES_OF_PROXY),
        ".SH EXIT STATUS\n" + "\n".join(_entry(code, what) for code, what in _EXITS_OF_PROXY),
        ".SH SEE ALSO\n.BR kpctl (8),\n.BR nft (8),\n.BR iptables (8)",
    )


def kpctl_page(program: Command) -> str:
    """kpctl(8)."""
    commands = [_command(path, command) for path, command in program.walk() if command != program]
    return _page(
        program,
        f".SH SYNOPSIS\n.B kpctl\n\\fIcommand\\fR [\\fIoptions\\fR]\n.SH DESCRIPTION\n"
        f"{_text(program.help)}",
        ".SH OPTIONS\n" + _options(program.options),
        ".SH COMMANDS",
        *commands,
        ".SH SEE ALSO\n.BR kube-proxy (8)",
    )


def _page(program: Command, *parts: str) -> str:
    # No date: the page depends on the code alone.
    version = f"kubeproxy {PACKAGE_VERSION} ({KUBERNETES_VERSION})"
    head = f'.TH {program.name.upper()} 8 "" "{version}" "System Administration"'
    summary = " ".join(program.help.partition("\n\n")[0].rstrip(".").split())
    name = f".SH NAME\n{_escape(program.name)} \\- {_escape(summary)}"
    return "\n".join((head, name, *parts)) + "\n"


def _command(path: str, command: Command) -> str:
    arguments = "".join(f" \\fI{_escape(value.name)}\\fR" for value in command.arguments)
    usage = f".B {_escape(path)}\n[\\fIoptions\\fR]{arguments}\n.PP"
    notes = f"\n.PP\n.nf\n{_escape(command.notes)}\n.fi" if command.notes else ""
    options = _options(command.options)
    return f".SS {_escape(path)}\n{usage}\n{_text(command.help)}\n{options}{notes}"


def _options(options: tuple[Option, ...]) -> str:
    return "\n".join(_option(option) for option in options)


def _option(option: Option) -> str:
    names = ", ".join(f"\\fB{_escape(name)}\\fR" for name in option.names)
    value = f" \\fI{_escape(option.value.name)}\\fR" if option.value else ""
    default = f" (default {option.default})" if option.default else ""
    return _entry(names + value, option.help + default)


def _entry(head: str, text: str) -> str:
    return f".TP\n{head}\n{_text(text) or '.br'}"


def _text(text: str) -> str:
    """Paragraphs of prose. A line that begins with a dot or quote would be a request."""
    paragraphs = [" ".join(part.split()) for part in text.replace("\b", "").split("\n\n")]
    return "\n.PP\n".join(_escape(part) for part in paragraphs if part)


def _escape(text: str) -> str:
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{safe}" if safe[:1] in (".", "'") else safe
