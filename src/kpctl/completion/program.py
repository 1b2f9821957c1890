"""What a command line may hold, as values: commands, options and the values of options.

Two tables are read into this form: the flags of kube-proxy and the commands of kpctl. Completion,
man pages and the reference are written from it, so none of them can miss an option. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc

import click
import msgspec

from kubeproxy.config.flags import ALL_FLAGS, Flag
from kubeproxy.config.types import LOCAL_MODES
from kubeproxy.modes.registry import mode_names

_WORDS_OF_FLAG = {
    "proxy-mode": mode_names(),
    "detect-local-mode": LOCAL_MODES,
    "logging-format": ("text", "json"),
    "version": ("raw",),
}
_FILES_OF_FLAG = frozenset({"config", "kubeconfig", "manifests", "write-config-to"})


class Value(msgspec.Struct, frozen=True):
    """What follows an option, or stands alone: one of these words, a file, or anything."""

    name: str = ""
    words: tuple[str, ...] = ()
    is_file: bool = False
    is_required: bool = False
    is_repeated: bool = False


class Option(msgspec.Struct, frozen=True):
    """One option with all its spellings, the long one first."""

    names: tuple[str, ...]
    help: str = ""
    value: Value | None = None
    """None for a switch."""
    default: str = ""
    group: str = ""


class Command(msgspec.Struct, frozen=True):
    """A command, its options, and the commands or arguments that may follow."""

    name: str
    help: str = ""
    options: tuple[Option, ...] = ()
    arguments: tuple[Value, ...] = ()
    commands: tuple[Command, ...] = ()
    notes: str = ""
    """What help prints at its end, with its own line breaks."""

    def walk(self, before: tuple[str, ...] = ()) -> Iterator[tuple[str, Command]]:
        """This command and all below it, each with its whole name: `kpctl plan`."""
        path = (*before, self.name)
        yield " ".join(path), self
        for command in self.commands:
            yield from command.walk(path)


def kube_proxy() -> Command:
    """The daemon, from the table of flags."""
    options = tuple(_flag_option(flag) for flag in ALL_FLAGS if not flag.is_hidden)
    return Command("kube-proxy", "The Kubernetes network proxy of a node", options)


def _flag_option(flag: Flag) -> Option:
    short = (f"-{flag.shorthand}",) if flag.shorthand else ()
    names = (f"--{flag.name}", *short)
    value = Value(
        name=flag.kind.name,
        words=_WORDS_OF_FLAG.get(flag.name, ()),
        is_file=flag.name in _FILES_OF_FLAG,
        is_required=not flag.kind.bare,
    )
    default = "" if flag.default == flag.kind.zero else flag.kind.format(flag.default)
    is_switch = bool(flag.kind.bare) and not value.words
    # Hundreds of gates, of which this program reads a few: they are left to --help.
    text = flag.help.replace("Options are:\n{gates}\n", "kube-proxy --help lists them. ")
    return Option(names, text, None if is_switch else value, default, flag.group)


def of_click(command: click.Command, name: str, parent: click.Context | None = None) -> Command:
    """A command of click with everything below it."""
    context = click.Context(command, parent=parent, info_name=name, **command.context_settings)
    below = command.commands if isinstance(command, click.Group) else {}
    params = [p for p in command.get_params(context) if not getattr(p, "hidden", False)]
    return Command(
        name=name,
        help=cleandoc(command.help or ""),
        notes=(command.epilog or "").replace("\b\n", ""),
        options=tuple(_click_option(p, context) for p in params if isinstance(p, click.Option)),
        arguments=tuple(_value(p, context) for p in params if isinstance(p, click.Argument)),
        commands=tuple(of_click(below[each], each, context) for each in sorted(below)),
    )


def _click_option(option: click.Option, context: click.Context) -> Option:
    names = sorted((*option.opts, *option.secondary_opts), key=lambda name: (-len(name), name))
    value = None if option.is_flag or option.count else _value(option, context)
    default = option.default if value and option.show_default else None
    return Option(tuple(names), option.help or "", value, "" if default is None else str(default))


def _value(param: click.Parameter, context: click.Context) -> Value:
    items = param.type.shell_complete(context, param, "")
    words = tuple(str(item.value) for item in items if item.type == "plain")
    return Value(
        name=param.make_metavar(context),
        words=words,
        is_file=any(item.type in ("file", "dir") for item in items),
        is_required=param.required,
        is_repeated=param.nargs == -1,
    )
