"""One invocation of kube-proxy, from its arguments to settings that may be run, or to an exit.

    parse_command_line(sys.argv[1:])  ──▶  Settings   run with these, after `start_logging`
                                      └─▶  Exit       print this and leave with that code

The order of stages and what each prints when it fails are upstream's: flags, help, arguments,
version, completion, logging, validation. Parsing prints nothing: texts and log entries are
returned, so that the caller decides where they go. `with_content` takes a later content of the
configuration file through the same stages.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kubeproxy.config import kinds
from kubeproxy.config.field_errors import join_errors
from kubeproxy.config.flags import Extensions
from kubeproxy.config.gates import FeatureGates
from kubeproxy.config.load import Loaded, load, load_content
from kubeproxy.config.parse import FlagError, ParsedFlags, parse_flags
from kubeproxy.config.types import KubeProxyConfiguration, LoggingConfiguration
from kubeproxy.config.usage import help_text, usage_text
from kubeproxy.config.validate import unrunnable, validate, validate_logging
from kubeproxy.errors import ConfigError
from kubeproxy.go.quoting import quote
from kubeproxy.logs import Entry, LogOptions, Severity, setup_logging, write_entry
from kubeproxy.logs.entry import format_json, format_text
from kubeproxy.version import (
    COMMIT,
    DISTRIBUTION,
    KUBERNETES_VERSION,
    TREE_STATE,
    go_platform,
)

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
    flags: ParsedFlags
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
    """Every flag by name, with the value that took effect: `/flagz`."""
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

    def is_same_configuration(self, other: Settings) -> bool:
        """Would a proxy with the other settings do the same? A gate set to its default counts not.

        Everything else in the settings comes from the flags.
        """
        own, others = (
            msgspec.structs.replace(settings.config, feature_gates={}) for settings in (self, other)
        )
        return own == others and self.gates == other.gates


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


def with_content(settings: Settings, content: bytes) -> Settings:
    """Return the settings with this content of the configuration file and the same flags.

    Raises ConfigError with the text with which the command would fail.
    """
    loaded = load_content(settings.flags, content)
    problem = _logging_problem(loaded) or _problem(settings.flags, loaded)
    if problem:
        raise ConfigError(problem)
    return _settings(settings.flags, loaded, _early_entries(loaded))


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
    early = _early_entries(loaded)
    problem = _logging_problem(loaded)
    if problem:
        return _failed(flags, early, problem, None)
    problem = _problem(flags, loaded)
    if problem:
        return _failed(flags, early, problem, log_options(loaded.config.logging))
    return _settings(flags, loaded, early)


def _early_entries(loaded: Loaded) -> tuple[Entry, ...]:
    return tuple(_entry(note.message, note.values) for note in loaded.notes)


def _logging_problem(loaded: Loaded) -> str:
    errors = list(validate_logging(loaded.config.logging, loaded.gates))
    return f"initialize logging: {join_errors(errors)}" if errors else ""


def _problem(flags: ParsedFlags, loaded: Loaded) -> str:
    errors = validate(loaded.config)
    if not errors and not flags.text("write-config-to") and not flags.is_set("cleanup"):
        errors = unrunnable(loaded.config)
    return f"failed validate: {join_errors(errors)}" if errors else ""


def _settings(flags: ParsedFlags, loaded: Loaded, early: tuple[Entry, ...]) -> Settings:
    version = flags.text("version")
    return Settings(
        config=loaded.config,
        extensions=loaded.extensions,
        gates=loaded.gates,
        flags=flags,
        version=version if version.startswith("v") else KUBERNETES_VERSION,
        master=flags.text("master"),
        config_file=flags.text("config"),
        config_content=loaded.config_content,
        write_config_to=flags.text("write-config-to"),
        cleanup=flags.is_set("cleanup"),
        init_only=flags.is_set("init-only"),
        flag_values=_completed_flags(flags, loaded),
        notices=flags.notices,
        early=early,
    )


def _completed_flags(flags: ParsedFlags, loaded: Loaded) -> dict[str, str]:
    """Return all flags as text. Without a file, defaults have been filled in for some of them.

    Upstream's flags share their memory with the configuration, and show it.
    """
    values = flags.formatted()
    if loaded.config_content is not None:
        return values
    config = loaded.config
    return values | {
        "proxy-mode": config.mode,
        "detect-local-mode": config.detect_local_mode,
        "nodeport-addresses": kinds.STRINGS.format(config.node_port_addresses or ()),
        "healthz-bind-address": config.healthz_bind_address,
        "metrics-bind-address": config.metrics_bind_address,
    }


def start_logging(settings: Settings) -> None:
    """Write the messages from before logging was set up, set it up, and log the flags (`-v1`)."""
    # The disk of the log may be full. The proxy goes on without it.
    with contextlib.suppress(OSError):
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

    Python stands where upstream names its Go version and compiler; our own version is the last.
    """
    import platform

    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".", 2)
    fields = {
        "Major": major,
        "Minor": minor,
        "EmulationMajor": major,
        "EmulationMinor": minor,
        "MinCompatibilityMajor": major,
        "MinCompatibilityMinor": str(int(minor) - 1),
        "GitVersion": KUBERNETES_VERSION,
        "GitCommit": COMMIT,
        "GitTreeState": TREE_STATE,
        "BuildDate": "1970-01-01T00:00:00Z",
        "GoVersion": f"python{platform.python_version()}",
        "Compiler": platform.python_implementation().lower(),
        "Platform": go_platform(sys.platform, platform.machine()),
        "Distribution": DISTRIBUTION,
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
