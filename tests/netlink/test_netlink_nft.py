"""nf_tables messages: packing, parsing, and finding the culprit inside a message."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import Failure, Message, iter_attrs, iter_messages, parse_attrs
from kubeproxy.kernel.nftables import wire as nft
from kubeproxy.kernel.nftables.table import refusals_of


def sent(transaction: nft.Transaction) -> list[Message]:
    return list(iter_messages(transaction.pack()))


def only(kind: int, body: bytes) -> Message:
    transaction = nft.Transaction(2)
    transaction.add(kind, body, "it")
    return sent(transaction)[1]


def test_a_transaction_is_enclosed_and_numbered() -> None:
    """Sequence numbers are positions: that is how refusals find back to their message."""
    transaction = nft.Transaction(2)
    transaction.add(nft.NEWTABLE, nft.table_body("t"), "table t", nft.CREATE)
    transaction.add(nft.NEWCHAIN, nft.chain_body("t", "c"), "chain c", nft.CREATE)
    begin, *messages, end = sent(transaction)
    assert (begin.type, end.type) == (0x10, 0x11)
    assert begin.body == codec.nfgen(0, 10)
    assert [(m.type & 0xFF, m.seq) for m in messages] == [(nft.NEWTABLE, 1), (nft.NEWCHAIN, 2)]
    assert transaction.size == sum(len(m.body) + 16 for m in messages)


def test_a_dry_run_has_no_end() -> None:
    """The kernel then validates and rolls back."""
    transaction = nft.Transaction(2)
    transaction.add(nft.NEWTABLE, nft.table_body("t"), "table t")
    assert [m.type & 0xFF for m in iter_messages(transaction.pack(is_dry_run=True))] == [0x10, 0]


def test_refusals_carry_labels() -> None:
    """An error about the transaction itself has no message of ours."""
    transaction = nft.Transaction(2)
    transaction.add(nft.NEWTABLE, nft.table_body("t"), "table t")
    refusals = refusals_of(transaction, [Failure(2, 1), Failure(1, 0, "not permitted")])
    assert [(r.label, r.text) for r in refusals] == [
        ("table t", "No such file or directory"),
        ("transaction", "not permitted"),
    ]


def test_tables_chains_and_sets_parse_back() -> None:
    """With hook, priority and comment."""
    hook = nft.Hook("nat", 0, -100)
    table = nft.parse_table(only(nft.NEWTABLE, nft.table_body("t", "words")))
    chain = nft.parse_chain(only(nft.NEWCHAIN, nft.chain_body("t", "c", hook, "words")))
    spec = nft.SetInfo("t", "s", nft.NFT_SET_MAP, 0x730D, 12, 0x1CD, 8, 5000, "words")
    assert table == nft.TableInfo(2, "t", "words")
    assert chain == nft.ChainInfo("t", "c", hook, "words")
    assert nft.parse_set(only(nft.NEWSET, nft.set_body(spec, 1))) == spec


def test_comments_are_cut_to_what_nft_accepts() -> None:
    """128 bytes with the terminator."""
    assert len(nft.userdata("x" * 500)) == 2 + 128


keys = st.binary(min_size=12, max_size=12)
slots = st.binary(min_size=8, max_size=8)


@given(st.lists(st.tuples(keys, slots), max_size=20))
def test_a_template_parses_what_the_kernel_dumps(pairs: list[tuple[bytes, bytes]]) -> None:
    """With and without the nested flag, which the kernel leaves out."""
    template = nft.ElementTemplate(12, 8)
    flagged = b"".join(template.head + key + template.middle + data for key, data in pairs)
    plain = b"".join(
        struct.pack("=HHHHHH", 40, 1, 20, 1, 16, 1)
        + key
        + struct.pack("=HHHH", 16, 2, 12, 1)
        + data
        for key, data in pairs
    )
    columns = tuple(zip(*pairs, strict=True)) or ((), ())
    assert template.parse(flagged) == columns
    assert template.parse(plain) == columns
    parsed = [nft.parse_element(raw) for _, raw in iter_attrs(flagged)]
    assert [(found.key, found.data) for found in parsed] == pairs


words = st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=40)


@given(st.binary(min_size=1, max_size=80), words, words)
def test_an_element_parses_back(key: bytes, chain: str, comment: str) -> None:
    """Verdicts are remembered and common forms taken quickly; what is returned is the same."""
    verdict = nft.Verdict(nft.NFT_GOTO, chain) if chain else None
    data = nft.pack_verdict(nft.NFTA_SET_ELEM_DATA, verdict) if verdict else b""
    ((_, packed),) = iter_attrs(nft.element(key, data, comment))
    assert nft.parse_element(packed) == nft.ElementInfo(key, b"", verdict, comment)


def test_a_comment_is_found_behind_other_user_data() -> None:
    before = bytes((nft.UDATA_COMMENT + 7, 3)) + b"abc"
    parts = codec.attr(nft.NFTA_SET_ELEM_USERDATA, before + nft.userdata("mine"))
    assert nft.parse_element(nft.element(b"key!")[codec.ATTR_HEADER_LENGTH :] + parts) == (
        nft.ElementInfo(b"key!", b"", None, "mine")
    )


def test_a_template_declines_elements_of_another_shape() -> None:
    """With a comment, for example: then the slow way is taken."""
    commented = nft.element(b"k" * 12, nft.pack_value(nft.NFTA_SET_ELEM_DATA, b"d" * 8), "mine")
    assert nft.ElementTemplate(12, 8).parse(commented) is None


def test_long_lists_are_split_below_the_attributes_limit() -> None:
    """And nothing is lost at the seams."""
    elements = [nft.element(number.to_bytes(4, "big")) for number in range(10_000)]
    bodies = list(nft.elements_bodies("t", "s", elements))
    lists = [parse_attrs(body)[nft.NFTA_SET_ELEM_LIST_ELEMENTS] for body in bodies]
    assert len(bodies) > 1
    assert all(len(listed) < 1 << 16 for listed in lists)
    assert b"".join(lists) == b"".join(elements)


def test_an_offset_leads_to_the_element_that_covers_it() -> None:
    """The kernel reports where in the message the offending attribute starts."""
    elements = [nft.element(bytes((number,)) * 4, comment="x" * number) for number in range(5)]
    (body,) = nft.elements_bodies("t", "s", elements)
    transaction = nft.Transaction(2)
    transaction.add(nft.NEWSETELEM, body, "elements of s")
    start = 16 + 4 + len(nft.elements_reference("t", "s")) + 4
    found = []
    for element in elements:
        found.append(transaction.element_key_at(0, start + 8))
        start += len(element)
    assert found == [bytes((number,)) * 4 for number in range(5)]
    assert transaction.element_key_at(0, 0) is None
    assert transaction.element_key_at(0, 1 << 20) is None
    assert transaction.element_key_at(7, 30) is None


def test_notifications_name_table_object_and_direction() -> None:
    """Generation messages concern no object."""
    deleted = nft.parse_notification(
        only(nft.DELSETELEM, nft.elements_reference("kube-proxy", "service-ips"))
    )
    assert deleted == nft.Notification(2, "kube-proxy", nft.DELSETELEM, "service-ips", True)
    added = nft.parse_notification(only(nft.NEWCHAIN, nft.chain_body("kube-proxy", "services")))
    assert added == nft.Notification(2, "kube-proxy", nft.NEWCHAIN, "services", False)
    assert nft.parse_notification(only(nft.NEWGEN, codec.attr_be32(1, 5))) is None


def test_verdicts_parse_back() -> None:
    """Negative codes are jumps."""
    verdict = nft.Verdict(nft.NFT_GOTO, "pick-3")
    packed = parse_attrs(nft.pack_verdict(nft.NFTA_SET_ELEM_DATA, verdict))
    assert nft.parse_verdict(packed[nft.NFTA_SET_ELEM_DATA]) == verdict
