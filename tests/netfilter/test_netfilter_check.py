"""Extensions that the kernel has not got are named, with their modules."""

from __future__ import annotations

from kubeproxy.modes.netfilter.check import missing_extensions

WARNING = "Warning: Extension {} revision 0 not supported, missing kernel module?\n"


def test_every_missing_extension_is_named_once() -> None:
    messages = WARNING.format("statistic") * 2 + WARNING.format("REDIRECT")
    assert missing_extensions(messages) == (
        "the kernel has no statistic, REDIRECT for iptables: "
        "install or load the kernel modules xt_statistic, xt_REDIRECT"
    )


def test_modules_that_have_another_name_are_named_by_it() -> None:
    messages = WARNING.format("DNAT") + WARNING.format("MARK")
    assert missing_extensions(messages).endswith("load the kernel modules xt_nat, xt_mark")


def test_other_messages_name_nothing() -> None:
    assert not missing_extensions("# Warning: iptables-legacy tables present\n")
