"""Framing: what is packed parses back, and foreign bytes never crash the parser."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.kernel.netlink import codec

attributes = st.lists(st.tuples(st.integers(0, codec.NLA_TYPE_MASK), st.binary(max_size=40)))


@given(attributes)
def test_attributes_parse_back_to_what_was_packed(pairs: list[tuple[int, bytes]]) -> None:
    """Packing pads to four bytes and parsing takes the padding off again."""
    packed = b"".join(codec.attr(kind, payload) for kind, payload in pairs)
    assert len(packed) % 4 == 0
    assert list(codec.iter_attrs(packed)) == pairs


@given(st.binary(max_size=200))
def test_any_bytes_can_be_walked(noise: bytes) -> None:
    """A truncated or hostile buffer ends the walk instead of raising."""
    assert all(len(value) <= len(noise) for _, value in codec.iter_attrs(noise))
    assert all(len(m.body) <= len(noise) for m in codec.iter_messages(noise))


@given(st.lists(st.tuples(st.integers(0, 0xFFFF), st.binary(max_size=32)), max_size=5))
def test_messages_of_one_datagram_come_back_in_order(parts: list[tuple[int, bytes]]) -> None:
    """Bodies must be padded by the caller, as attributes are."""
    bodies = [(kind, body + b"\0" * (-len(body) % 4)) for kind, body in parts]
    datagram = b"".join(codec.message(k, 5, i, b) for i, (k, b) in enumerate(bodies))
    seen = [(m.type, m.seq, m.body) for m in codec.iter_messages(datagram)]
    assert seen == [(k, i, b) for i, (k, b) in enumerate(bodies)]


def test_nested_attributes_carry_the_nested_bit_on_the_wire_only() -> None:
    """Readers see the plain type, the kernel sees the flag."""
    packed = codec.attr_nested(4, codec.attr_be32(1, 7))
    assert struct.unpack_from("=HH", packed) == (12, 4 | codec.NLA_F_NESTED)
    assert codec.be(codec.parse_attrs(codec.parse_attrs(packed)[4])[1]) == 7


def test_text_stops_at_the_terminator() -> None:
    """Kernel strings are NUL-terminated and may be padded."""
    assert codec.text(codec.parse_attrs(codec.attr_str(1, "kube-proxy"))[1]) == "kube-proxy"


def _error(errno: int, flags: int, *, echo: bytes = b"", extra: bytes = b"") -> codec.Message:
    header = codec.message(0xA00, 0, 42, echo)
    return codec.Message(
        codec.NLMSG_ERROR, flags, 42, 0, struct.pack("=i", -errno) + header + extra
    )


def test_a_failure_carries_the_kernels_words_and_the_sequence_number() -> None:
    """Extended acknowledgements follow the echoed header when it is capped."""
    words = codec.attr_str(1, "no such chain") + codec.attr_u32(2, 24)
    reply = _error(2, codec.NLM_F_CAPPED | codec.NLM_F_ACK_TLVS, extra=words)
    assert codec.parse_failure(reply) == codec.Failure(2, 42, "no such chain", 24)


def test_an_uncapped_failure_skips_the_echoed_message() -> None:
    """Without capping the whole refused message stands before the extended text."""
    reply = _error(22, codec.NLM_F_ACK_TLVS, echo=b"12345678", extra=codec.attr_str(1, "bad"))
    assert codec.parse_failure(reply) == codec.Failure(22, 42, "bad", 0)


def test_an_acknowledgement_is_a_failure_of_zero() -> None:
    """errno 0 means the request was carried out."""
    assert codec.parse_failure(_error(0, codec.NLM_F_CAPPED)).errno == 0
