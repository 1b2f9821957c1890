"""Completion scripts for bash, zsh and fish. Pure: a command in, a text out.

The scripts are static: a press of Tab starts no Python, which would take a quarter of a second. A
new version of the program needs a new script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kpctl.completion.program import Command, Option, Value

_BASH = """\
# bash completion of {name}
_{function}() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} place={name} i
    # bash splits --option=value at the sign.
    if [[ $cur == = ]]; then cur=
    elif [[ $prev == = ]]; then prev=${{COMP_WORDS[COMP_CWORD-2]}}; fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$place ${{COMP_WORDS[i]}}" in
{places}        esac
    done
    COMPREPLY=()
    case "$place $prev" in
{values}    esac
    case "$place" in
{words}    esac
}}
complete -o default -F _{function} {name}
"""


def bash(program: Command) -> str:
    """The script for bash; `source` it, or put it where bash-completion looks."""
    places = [path for path, _ in program.walk() if path != program.name]
    return _BASH.format(
        name=program.name,
        function=_function(program.name),
        places="".join(f'            "{path}") place="{path}" ;;\n' for path in places),
        values="".join(_bash_values(program)),
        words="".join(_bash_words(program)),
    )


def _bash_values(program: Command) -> Iterator[str]:
    for path, command in program.walk():
        for option in command.options:
            if option.value is None:
                continue
            pattern = "|".join(f'"{path} {name}"' for name in option.names)
            yield f"        {pattern}) {_bash_reply(option.value)}return ;;\n"


def _bash_reply(value: Value) -> str:
    """Without words of its own the reply is empty, and bash completes file names."""
    if not value.words:
        return ""
    return f'COMPREPLY=($(compgen -W "{" ".join(value.words)}" -- "$cur")); '


def _bash_words(program: Command) -> Iterator[str]:
    for path, command in program.walk():
        options = " ".join(name for option in command.options for name in option.names)
        plain = " ".join(_plain_words(command))
        takes_files = any(value.is_file for value in command.arguments)
        empty = "" if takes_files else plain or options
        yield f'        "{path}") local words="{empty}"; [[ $cur == -* ]] && words="{options}"\n'
        yield '            COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;\n'


def _plain_words(command: Command) -> tuple[str, ...]:
    """What may follow besides options: commands, or the words of an argument."""
    if command.commands:
        return tuple(each.name for each in command.commands)
    return tuple(word for value in command.arguments for word in value.words)


def zsh(program: Command) -> str:
    """The script for zsh; a file `_NAME` in a directory of $fpath."""
    functions = "\n".join(_zsh_function(path, command) for path, command in program.walk())
    start = f'{_function(program.name)} "$@"'
    return f"#compdef {program.name}\n\n{functions}\n_{start}\n"


def _zsh_function(path: str, command: Command) -> str:
    lines = [_zsh_option(option) for option in command.options]
    if command.commands:
        lines += ["'1:command:->command'", "'*::argument:->argument'"]
    lines += [_zsh_argument(value) for value in command.arguments]
    body = " \\\n        ".join(["_arguments -C", *lines])
    return f"_{_function(path)}() {{\n    local state\n    {body}\n{_zsh_below(path, command)}}}\n"


def _zsh_below(path: str, command: Command) -> str:
    if not command.commands:
        return ""
    described = "\n".join(
        f"                {_quoted(f'{each.name}:{_line(each.help)}')}" for each in command.commands
    )
    calls = "\n".join(
        f"            {each.name}) _{_function(f'{path} {each.name}')} ;;"
        for each in command.commands
    )
    return (
        f"    case $state in\n        command)\n            local -a commands=(\n{described}\n"
        f"            )\n            _describe command commands ;;\n"
        f"        argument) case $words[1] in\n{calls}\n        esac ;;\n    esac\n"
    )


def _zsh_option(option: Option) -> str:
    text = _line(option.help).replace("[", "(").replace("]", ")").replace(":", "\\:")
    value = "" if option.value is None else f":value:{_zsh_action(option.value)}"
    # `=` after the name allows both `--name value` and `--name=value`.
    spelled = [f"{name}{'=' if value and name.startswith('--') else ''}" for name in option.names]
    if len(spelled) == 1:
        return _quoted(f"*{spelled[0]}[{text}]{value}")
    return f"'*'{{{','.join(spelled)}}}{_quoted(f'[{text}]{value}')}"


def _zsh_argument(value: Value) -> str:
    return _quoted(f"*:{value.name.lower() or 'argument'}:{_zsh_action(value)}".replace("...", ""))


def _zsh_action(value: Value) -> str:
    if value.words:
        return f"({' '.join(value.words)})"
    return "_files" if value.is_file else " "


def fish(program: Command) -> str:
    """The script for fish; a file NAME.fish in a directory of $fish_complete_path."""
    return "\n".join([f"complete -c {program.name} -f", *_fish_lines(program)]) + "\n"


def _fish_lines(program: Command) -> Iterator[str]:
    for path, command in program.walk():
        head = f"complete -c {program.name}{_fish_condition(program, path)}"
        for below in command.commands:
            yield f"{head} -a {below.name} -d {_quoted(_line(below.help))}"
        for value in command.arguments:
            if value.words or value.is_file:
                yield head + (f" -a {_quoted(' '.join(value.words))}" if value.words else " -F")
        for option in command.options:
            yield head + _fish_option(option)


def _fish_condition(program: Command, path: str) -> str:
    """Which commands were typed before: all of this one's name, and none of those below."""
    if not program.commands:
        return ""
    if path == program.name:
        return " -n __fish_use_subcommand"
    tests = [f"__fish_seen_subcommand_from {word}" for word in path.split()[1:]]
    return f" -n {_quoted('; and '.join(tests))}"


def _fish_option(option: Option) -> str:
    spelled = "".join(
        f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in option.names
    )
    return f"{spelled}{_fish_value(option.value)} -d {_quoted(_line(option.help))}"


def _fish_value(value: Value | None) -> str:
    if value is None:
        return ""
    if value.words:
        return f" -x -a {_quoted(' '.join(value.words))}"
    return " -r -F" if value.is_file else " -x"


def _line(text: str) -> str:
    """The first sentence, on one line."""
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


def _quoted(text: str) -> str:
    """A word for any of the shells."""
    return "'" + text.replace("'", "’") + "'"


def _function(path: str) -> str:
    return path.replace(" ", "_").replace("-", "_")


SHELLS: Mapping[str, Callable[[Command], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
