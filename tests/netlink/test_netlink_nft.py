"""nf_tables messages: packing, parsing, and finding the culprit inside a message."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.kernel.netlink import codec
from kubeproxy.kernel.netlink.codec import Failure, Message, iter_attrs, iter_messages, parse_attrs
from kubeproxy.kernel.nftables import wire as nft


def sent(batch: nft.Batch) -> list[Message]:
    return list(iter_messages(batch.pack()))


def only(kind: int, body: bytes) -> Message:
    batch = nft.Batch(2)
    batch.add(kind, body, "it")
    return sent(batch)[1]


def test_a_batch_is_enclosed_and_numbered() -> None:
    """Sequence numbers are positions: that is how refusals find back to their message."""
    batch = nft.Batch(2)
    batch.add(nft.NEWTABLE, nft.table_body("t"), "table t", nft.CREATE)
    batch.add(nft.NEWCHAIN, nft.chain_body("t", "c"), "chain c", nft.CREATE)
    begin, *messages, end = sent(batch)
    assert (begin.type, end.type) == (0x10, 0x11)
    assert begin.body == codec.nfgen(0, 10)
    assert [(m.type & 0xFF, m.seq) for m in messages] == [(nft.NEWTABLE, 1), (nft.NEWCHAIN, 2)]
    assert batch.size == sum(len(m.body) + 16 for m in messages)


def test_a_dry_run_has_no_end() -> None:
    """The kernel then validates and rolls back."""
    batch = nft.Batch(2)
    batch.add(nft.NEWTABLE, nft.table_body("t"), "table t")
    assert [m.type & 0xFF for m in iter_messages(batch.pack(is_dry_run=True))] == [0x10, 0]


def test_refusals_speak_of_labels() -> None:
    """An error about the batch itself has no message of ours."""
    batch = nft.Batch(2)
    batch.add(nft.NEWTABLE, nft.table_body("t"), "table t")
    refusals = batch.refusals([Failure(2, 1), Failure(1, 0, "not permitted")])
    assert [(r.label, r.text) for r in refusals] == [
        ("table t", "No such file or directory"),
        ("transaction", "not permitted"),
    ]


def test_tables_chains_and_sets_parse_back() -> None:
    """With hook, priority and comment."""
    hook = nft.Hook("nat", 0, -100)
    table = nft.parse_table(only(nft.NEWTABLE, nft.table_body("t", "words")))
    chain = nft.parse_chain(only(nft.NEWCHAIN, nft.chain_body("t", "c", hook, "words")))
    spec = nft.SetInfo("t", "s", nft.SET_MAP, 0x730D, 12, 0x1CD, 8, 5000, "words")
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
    assert template.parse(flagged) == pairs
    assert template.parse(plain) == pairs
    parsed = [nft.parse_element(raw) for _, raw in iter_attrs(flagged)]
    assert [(found.key, found.data) for found in parsed] == pairs


def test_a_template_declines_elements_of_another_shape() -> None:
    """Somebody's comment, for example: then the slow way is taken."""
    commented = nft.element(b"k" * 12, nft.pack_value(2, b"d" * 8), "mine")
    assert nft.ElementTemplate(12, 8).parse(commented) is None


def test_long_lists_are_split_below_the_attributes_limit() -> None:
    """And nothing is lost at the seams."""
    elements = [nft.element(number.to_bytes(4, "big")) for number in range(10_000)]
    bodies = list(nft.elements_bodies("t", "s", elements))
    lists = [parse_attrs(body)[3] for body in bodies]
    assert len(bodies) > 1
    assert all(len(listed) < 1 << 16 for listed in lists)
    assert b"".join(lists) == b"".join(elements)


def test_an_offset_leads_to_the_element_that_covers_it() -> None:
    """The kernel tells where in the message it stumbled."""
    elements = [nft.element(bytes((number,)) * 4, comment="x" * number) for number in range(5)]
    (body,) = nft.elements_bodies("t", "s", elements)
    batch = nft.Batch(2)
    batch.add(nft.NEWSETELEM, body, "elements of s")
    start = 16 + 4 + len(nft.reference("t", "s")) + 4
    found = []
    for element in elements:
        found.append(batch.element_key_at(0, start + 8))
        start += len(element)
    assert found == [bytes((number,)) * 4 for number in range(5)]
    assert batch.element_key_at(0, 0) is None
    assert batch.element_key_at(0, 1 << 20) is None
    assert batch.element_key_at(7, 30) is None


def test_news_tells_table_object_and_direction() -> None:
    """Generation messages are no news of an object."""
    deleted = nft.parse_news(only(nft.DELSETELEM, nft.reference("kube-proxy", "service-ips")))
    assert deleted == nft.News(2, "kube-proxy", nft.DELSETELEM, "service-ips", True)
    added = nft.parse_news(only(nft.NEWCHAIN, nft.chain_body("kube-proxy", "services")))
    assert added == nft.News(2, "kube-proxy", nft.NEWCHAIN, "services", False)
    assert nft.parse_news(only(nft.NEWGEN, codec.attr_be32(1, 5))) is None


def test_verdicts_parse_back() -> None:
    """Negative codes are jumps."""
    packed = parse_attrs(nft.pack_verdict(2, nft.Verdict(nft.GOTO, "pick-3")))[2]
    assert nft.parse_data(packed) == nft.Verdict(nft.GOTO, "pick-3")
