"""Reading a command line: spellings, repetition and the texts of errors."""

from __future__ import annotations

import pytest

from kubeproxy.config.parse import FlagError, parse_flags


@pytest.mark.parametrize("argv", [["-v4"], ["-v=4"], ["-v", "4"], ["--v=4"], ["--v", "4"]])
def test_verbosity_has_many_spellings(argv: list[str]) -> None:
    assert parse_flags(argv).values["v"] == 4


def test_underscores_and_hyphens_are_the_same() -> None:
    assert parse_flags(["--proxy_mode=ipvs", "--masquerade_all"]).formatted() == (
        parse_flags(["--proxy-mode", "ipvs", "--masquerade-all=true"]).formatted()
    )


def test_a_boolean_takes_no_separate_value() -> None:
    flags = parse_flags(["--cleanup", "false"])
    assert flags.is_set("cleanup")
    assert flags.arguments == ("false",)


def test_flags_end_at_two_hyphens() -> None:
    assert parse_flags(["a", "--", "--cleanup", "-x"]).arguments == ("a", "--cleanup", "-x")


def test_a_single_hyphen_is_an_argument() -> None:
    assert parse_flags(["-"]).arguments == ("-",)


def test_switches_may_share_a_hyphen() -> None:
    flags = parse_flags(["-hv3"])
    assert flags.is_set("help") and flags.integer("v") == 3


def test_a_list_flag_appends_and_honours_quotes() -> None:
    flags = parse_flags(
        ["--nodeport-addresses", '10.0.0.0/8,"a,b"', "--nodeport-addresses=fd00::/8"]
    )
    assert flags.values["nodeport-addresses"] == ("10.0.0.0/8", "a,b", "fd00::/8")
    assert flags.formatted()["nodeport-addresses"] == '[10.0.0.0/8,"a,b",fd00::/8]'


def test_an_empty_list_is_given_and_empty() -> None:
    flags = parse_flags(["--nodeport-addresses="])
    assert flags.values["nodeport-addresses"] == () and "nodeport-addresses" in flags.given


def test_feature_gates_are_merged() -> None:
    flags = parse_flags(["--feature-gates=A=true, B = false ,", "--feature-gates=C=1"])
    assert flags.values["feature-gates"] == {"A": True, "B": False, "C": True}
    assert flags.formatted()["feature-gates"] == "A=true,B=false,C=true"


def test_vmodule_patterns_are_collected() -> None:
    flags = parse_flags(["--vmodule=a=1,", "--vmodule=b*=2"])
    assert flags.formatted()["vmodule"] == "a=1,b*=2"


def test_deprecated_flags_are_announced() -> None:
    flags = parse_flags(["--healthz-port=1", "--metrics-port=2"])
    assert [notice.split(",")[0] for notice in flags.notices] == [
        "Flag --healthz-port has been deprecated",
        "Flag --metrics-port has been deprecated",
    ]


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--bogus=1"], "unknown flag: --bogus"),
        (["--logtostderr"], "unknown flag: --logtostderr"),
        (["-x"], "unknown shorthand flag: 'x' in -x"),
        (["--=1"], "bad flag syntax: --=1"),
        (["---a"], "bad flag syntax: ---a"),
        (["--config"], "flag needs an argument: --config"),
        (["-v"], "flag needs an argument: 'v' in -v"),
        (
            ["-v", "x"],
            'invalid argument "x" for "-v, --v" flag: '
            'strconv.ParseUint: parsing "x": invalid syntax',
        ),
        (
            ["--conntrack-min=x"],
            'invalid argument "x" for "--conntrack-min" flag: '
            'strconv.ParseInt: parsing "x": invalid syntax',
        ),
        (
            ["--cleanup=yes"],
            'invalid argument "yes" for "--cleanup" flag: '
            'strconv.ParseBool: parsing "yes": invalid syntax',
        ),
        (
            ["--config-sync-period=5"],
            'invalid argument "5" for "--config-sync-period" flag: '
            'time: missing unit in duration "5"',
        ),
        (
            ["--bind-address=x"],
            'invalid argument "x" for "--bind-address" flag: "x" is not a valid IP address',
        ),
        (
            ["--healthz-bind-address=foo"],
            'invalid argument "foo" for "--healthz-bind-address" flag: "foo" is not in a valid '
            "format (ip or ip:port): address foo: missing port in address",
        ),
        (
            ["--metrics-bind-address=x:1"],
            'invalid argument "x:1" for "--metrics-bind-address" flag: '
            '"x" is not a valid IP address',
        ),
        (
            ["--metrics-bind-address=1.2.3.4:99999"],
            'invalid argument "1.2.3.4:99999" for "--metrics-bind-address" flag: '
            '"99999" is not a valid number',
        ),
        (
            ["--feature-gates=Foo"],
            'invalid argument "Foo" for "--feature-gates" flag: malformed pair, expect string=bool',
        ),
        (
            ["--feature-gates=Foo=bar"],
            'invalid argument "Foo=bar" for "--feature-gates" flag: invalid value of Foo: bar, '
            'err: strconv.ParseBool: parsing "bar": invalid syntax',
        ),
        (
            ["--vmodule=foo"],
            'invalid argument "foo" for "--vmodule" flag: "foo" does not have the pattern=N format',
        ),
        (
            ["--vmodule=foo=x"],
            'invalid argument "foo=x" for "--vmodule" flag: parsing verbosity in "foo=x": '
            'strconv.ParseUint: parsing "x": invalid syntax',
        ),
        (
            ["--version=v1.35.0"],
            'invalid argument "v1.35.0" for "--version" flag: version "v1.35.0" must match '
            'major/minor/patch of default version "v1.36.4"',
        ),
        (
            ["--version=vx"],
            'invalid argument "vx" for "--version" flag: could not parse "vx" as version',
        ),
        (
            ['--nodeport-addresses="a'],
            'invalid argument "\\"a" for "--nodeport-addresses" flag: parse error on line 1, '
            'column 3: extraneous or missing " in quoted-field',
        ),
        (
            ["--proxy-port-range=9-8"],
            'invalid argument "9-8" for "--proxy-port-range" flag: "9-8" is not a valid port '
            "range: ports must be 1-65535, ascending",
        ),
        (
            ["--proxy-port-range=a"],
            'invalid argument "a" for "--proxy-port-range" flag: "a" is not a valid port '
            "range: use from-to or base+size",
        ),
    ],
)
def test_errors_have_upstreams_words(argv: list[str], error: str) -> None:
    with pytest.raises(FlagError) as caught:
        parse_flags(argv)
    assert str(caught.value) == error


@pytest.mark.parametrize("text", ["", "80", "30000-32767", "30000+100"])
def test_port_ranges(text: str) -> None:
    assert parse_flags([f"--proxy-port-range={text}"]).text("proxy-port-range") == text


@pytest.mark.parametrize("text", ["010.0.0.1", "::", "0.0.0.0:0", "[::1]:80", ""])
def test_addresses_that_pass_the_flag(text: str) -> None:
    assert parse_flags([f"--healthz-bind-address={text}"]).text("healthz-bind-address") == text


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--version"], "true"),
        (["--version=false"], "false"),
        (["--version=raw"], "raw"),
        (["--version=v1.36.4+build"], "v1.36.4+build"),
    ],
)
def test_the_version_flag(argv: list[str], shown: str) -> None:
    assert parse_flags(argv).text("version") == shown
