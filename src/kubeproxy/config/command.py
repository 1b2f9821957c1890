"""One invocation of kube-proxy, from its arguments to settings that may be run, or to an exit.

    parse_command_line(sys.argv[1:])  ──▶  Settings   run with these, after `start_logging`
                                      └─▶  Exit       print this and leave with that code

The order of stages and what each prints when it fails are upstream's: flags, help, arguments,
version, completion, logging, validation. Parsing prints nothing: texts and log entries are
returned, so that the caller decides where they go.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kubeproxy.config.field_errors import join_errors
from kubeproxy.config.flags import Extensions
from kubeproxy.config.gates import FeatureGates
from kubeproxy.config.load import Loaded, load
from kubeproxy.config.parse import FlagError, ParsedFlags, parse_flags
from kubeproxy.config.types import KubeProxyConfiguration, LoggingConfiguration
from kubeproxy.config.usage import help_text, usage_text
from kubeproxy.config.validate import unrunnable, validate, validate_logging
from kubeproxy.errors import ConfigError
from kubeproxy.go.quoting import quote
from kubeproxy.logs import Entry, LogOptions, Severity, setup_logging, write_entry
from kubeproxy.logs.entry import format_json, format_text
from kubeproxy.version import KUBERNETES_VERSION

PROGRAM = "kube-proxy"


class Exit(msgspec.Struct, frozen=True, gc=False):
    """The texts to print and the code to exit with."""

    code: int
    stdout: str = ""
    stderr: str = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an invocation asks for. The configuration is complete and valid."""

    config: KubeProxyConfiguration
    extensions: Extensions
    gates: FeatureGates
    version: str = KUBERNETES_VERSION
    """The version to report: `v1.36.4`, or the value of `--version=v…`."""
    master: str = ""
    config_file: str = ""
    config_content: bytes | None = None
    """The content that was read from it, so that `watch` notices a change made since."""
    write_config_to: str = ""
    cleanup: bool = False
    init_only: bool = False
    flag_values: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Every flag as given on the command line, by name: `/flagz`."""
    notices: tuple[str, ...] = ()
    """Lines for stderr about deprecated flags."""
    early: tuple[Entry, ...] = ()
    """Log messages from before logging was set up. They are always written as text."""

    @property
    def hostname_override(self) -> str:
        """The node name from flag or file. Empty means the host name."""
        return self.config.hostname_override.strip().lower()

    @property
    def log_options(self) -> LogOptions:
        return log_options(self.config.logging)


def parse_command_line(argv: Sequence[str]) -> Settings | Exit:
    """Return settings to run with, or how to exit. `argv` is without the program's name."""
    try:
        flags = parse_flags(argv)
    except FlagError as error:
        return Exit(1, stderr=f"{usage_text()}\nError: {error}\n")
    early_exit = _early_exit(flags)
    if early_exit is not None:
        return early_exit
    try:
        loaded = load(flags)
    except ConfigError as error:
        return _failed(flags, (), f"failed complete: {error}", None)
    return _check(flags, loaded)


def _early_exit(flags: ParsedFlags) -> Exit | None:
    """Handle `--help`, superfluous arguments and `--version`, which need no configuration."""
    if flags.is_set("help"):
        return Exit(0, stdout=help_text(), stderr=_lines(flags.notices))
    if any(flags.arguments):
        shown = f"[{' '.join(map(quote, flags.arguments))}]"
        error = f"Error: {quote(PROGRAM)} does not take any arguments, got {shown}"
        return Exit(1, stderr=_lines((*flags.notices, error)))
    version = flags.text("version")
    if version == "true":
        return Exit(0, stdout=f"Kubernetes {KUBERNETES_VERSION}\n", stderr=_lines(flags.notices))
    if version == "raw":
        return Exit(0, stdout=raw_version() + "\n", stderr=_lines(flags.notices))
    return None


def _check(flags: ParsedFlags, loaded: Loaded) -> Settings | Exit:
    """Validate the logging options, then everything else."""
    early = tuple(_entry(note.message, note.values) for note in loaded.notes)
    errors = list(validate_logging(loaded.config.logging, loaded.gates))
    if errors:
        return _failed(flags, early, f"initialize logging: {join_errors(errors)}", None)
    errors = validate(loaded.config)
    if not errors and not flags.text("write-config-to") and not flags.is_set("cleanup"):
        errors = unrunnable(loaded.config)
    if errors:
        text = f"failed validate: {join_errors(errors)}"
        return _failed(flags, early, text, log_options(loaded.config.logging))
    return _settings(flags, loaded, early)


def _settings(flags: ParsedFlags, loaded: Loaded, early: tuple[Entry, ...]) -> Settings:
    version = flags.text("version")
    return Settings(
        config=loaded.config,
        extensions=loaded.extensions,
        gates=loaded.gates,
        version=version if version.startswith("v") else KUBERNETES_VERSION,
        master=flags.text("master"),
        config_file=flags.text("config"),
        config_content=loaded.config_content,
        write_config_to=flags.text("write-config-to"),
        cleanup=flags.is_set("cleanup"),
        init_only=flags.is_set("init-only"),
        flag_values=flags.formatted(),
        notices=flags.notices,
        early=early,
    )


def start_logging(settings: Settings) -> None:
    """Write the messages from before logging was set up, set it up, and log the flags (`-v1`)."""
    sys.stderr.write(_lines(settings.notices))
    setup_logging(LogOptions())
    for entry in settings.early:
        write_entry(entry)
    setup_logging(settings.log_options)
    for entry in _flag_entries(settings.flag_values, settings.log_options):
        write_entry(entry)


def log_options(logging: LoggingConfiguration) -> LogOptions:
    """Translate the logging section of the configuration."""
    is_json = logging.format == "json"
    output = logging.options.json if is_json else logging.options.text
    return LogOptions(
        is_json=is_json,
        verbosity=logging.verbosity,
        vmodule=tuple((item.file_pattern, item.verbosity) for item in logging.vmodule),
        split_stream=output.split_stream,
        info_buffer_bytes=output.info_buffer_size.value,
        flush_seconds=logging.flush_frequency.duration.seconds,
    )


def raw_version() -> str:
    """Return build information in the form of `--version=raw`.

    Python stands where upstream names its Go version and compiler.
    """
    import platform

    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".", 2)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    fields = {
        "Major": major,
        "Minor": minor,
        "EmulationMajor": major,
        "EmulationMinor": minor,
        "MinCompatibilityMajor": major,
        "MinCompatibilityMinor": str(int(minor) - 1),
        "GitVersion": KUBERNETES_VERSION,
        "GitCommit": "",
        "GitTreeState": "",
        "BuildDate": "1970-01-01T00:00:00Z",
        "GoVersion": f"python{platform.python_version()}",
        "Compiler": platform.python_implementation().lower(),
        "Platform": f"{sys.platform}/{machine}",
    }
    return "version.Info{" + ", ".join(f"{k}:{quote(v)}" for k, v in fields.items()) + "}"


def _failed(
    flags: ParsedFlags, early: tuple[Entry, ...], error: str, options: LogOptions | None
) -> Exit:
    """Exit with "command failed".

    With options, logging was already set up when the command failed: the failure goes to the
    configured stream in the configured format, and what came before it to stderr as text.
    """
    failure = _entry("command failed", {}, error=error)
    before, after = ((*early, failure), ()) if options is None else (early, (failure,))
    effective = options or LogOptions()
    if options is not None:
        after = (*_flag_entries(flags.formatted(), effective), *after)
    write = format_json if effective.is_json else format_text
    to_stdout = [e for e in after if effective.split_stream and not e.severity.is_error]
    to_stderr = [e for e in after if e not in to_stdout]
    return Exit(
        1,
        stdout="".join(map(write, to_stdout)),
        stderr=_lines(flags.notices)
        + "".join(map(format_text, before))
        + "".join(map(write, to_stderr)),
    )


def _flag_entries(values: Mapping[str, str], options: LogOptions) -> tuple[Entry, ...]:
    if options.verbosity < 1:
        return ()
    return tuple(
        _entry(f"FLAG: --{name}={quote(value)}", {}, is_structured=False, verbosity=1)
        for name, value in values.items()
    )


def _entry(
    message: str,
    values: Mapping[str, object],
    *,
    error: str | None = None,
    verbosity: int = 0,
    is_structured: bool = True,
) -> Entry:
    caller = sys._getframe(1)  # log lines name the line that reports, not this one
    return Entry(
        message=message,
        severity=Severity.INFO if error is None else Severity.ERROR,
        values=values,
        error=error,
        verbosity=verbosity,
        is_structured=is_structured,
        caller=f"config/command.py:{caller.f_lineno}",
        timestamp=time.time(),
        process=os.getpid(),
    )


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
