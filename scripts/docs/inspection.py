"""The reference page of the inspection API, made from its types: one table for each answer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import msgspec
from msgspec import inspect as shapes

from kubeproxy.facts.endpoint import Endpoint, SliceFacts
from kubeproxy.facts.node import NodeFacts
from kubeproxy.facts.service import PortFacts, ServiceFacts
from kubeproxy.inspection import types
from scripts.docs.markdown import code, page, table

_FACTS = (ServiceFacts, PortFacts, SliceFacts, Endpoint, NodeFacts)
_WORDS = {
    shapes.StrType: "text",
    shapes.IntType: "integer",
    shapes.FloatType: "number",
    shapes.BoolType: "true or false",
    shapes.NoneType: "null",
    shapes.RawType: "any JSON",
    shapes.AnyType: "any JSON",
}


def inspection_page() -> str:
    """Every path and every type of the API."""
    return page(
        "Inspection API",
        "kube-proxy answers on a Unix socket (`--inspection-socket`, mode 0600; nothing on TCP). "
        "It is read-only HTTP with JSON, and what `kpctl` uses. Fields may be added within a "
        "version. A field that has its default may be missing from facts.",
        "## Paths\n\n" + table(("path", "answer"), [(code(p), a) for p, a in types.PATHS.items()]),
        *(_type(found) for found in _types()),
    )


def _types() -> Iterator[type]:
    """The types of the API in the order of the module, then the facts they hold."""
    for found in vars(types).values():
        if inspect.isclass(found) and found.__module__ == types.__name__:
            yield found
    yield from _FACTS


def _type(found: type) -> str:
    text = inspect.cleandoc(found.__doc__ or "")
    shape = shapes.type_info(found)
    assert isinstance(shape, shapes.StructType)
    rows = [(code(field.encode_name), _words(field.type)) for field in shape.fields]
    return f"## {found.__name__}\n\n{text}\n\n" + table(("field", "is"), rows)


def _words(shape: shapes.Type) -> str:
    """Describe a type, with a link to those that have a table."""
    if word := _WORDS.get(type(shape)):
        return word
    match shape:
        case shapes.UnionType(types=parts):
            return " or ".join(map(_words, parts))
        case shapes.EnumType(cls=enum):
            return ", ".join(code(str(member.value)) for member in enum)
        case shapes.StructType(array_like=True, fields=fields):
            return f"list: {', '.join(code(field.name) for field in fields)}"
        case shapes.StructType(cls=struct):
            return f"[{struct.__name__}](#{struct.__name__.lower()})"
        case shapes.NamedTupleType(cls=found, fields=fields):
            return f"list: {', '.join(code(field.name) for field in fields)}" if found else ""
        case shapes.VarTupleType(item_type=item) | shapes.ListType(item_type=item):
            return f"list of {_words(item)}"
        case shapes.FrozenSetType(item_type=item):
            return f"list of {_words(item)}"
        case shapes.TupleType(item_types=items):
            return f"list: {', '.join(map(_words, items))}"
        case shapes.DictType(key_type=key, value_type=value):
            return f"map from {_words(key)} to {_words(value)}"
    raise msgspec.ValidationError(f"no words for {shape}")
