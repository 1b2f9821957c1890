"""The list of what a product consists of, as SPDX 2.3 JSON. Equal contents give equal documents."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import quote

from scripts.pack.debian import Package
from scripts.pack.source import Source

_PRODUCT = "SPDXRef-kubeproxy"
_UNKNOWN = "NOASSERTION"


def document(source: Source, packages: Iterable[Package], program: Path) -> str:
    """Name the program, the Debian packages, and the Python dependencies in its folder."""
    parts = [*map(_debian, packages), *_python(program)]
    listed = [_own(source), *parts]
    text = json.dumps(listed, sort_keys=True)
    moment = datetime.fromtimestamp(source.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps(
        {
            "spdxVersion": "SPDX-2.3",
            "dataLicense": "CC0-1.0",
            "SPDXID": "SPDXRef-DOCUMENT",
            "name": f"kubeproxy-{source.version}",
            "documentNamespace": uuid.uuid5(uuid.NAMESPACE_OID, text).urn,
            "creationInfo": {"created": moment, "creators": ["Tool: kubeproxy-scripts-pack"]},
            "packages": listed,
            "relationships": [
                _relation("SPDXRef-DOCUMENT", "DESCRIBES", _PRODUCT),
                *(_relation(_PRODUCT, "CONTAINS", str(part["SPDXID"])) for part in parts),
            ],
        },
        indent=1,
    )


def _own(source: Source) -> dict[str, object]:
    entry = _entry("kubeproxy", source.version, purl=f"pkg:pypi/kubeproxy@{source.version}")
    return entry | {"SPDXID": _PRODUCT, "licenseDeclared": "Apache-2.0", "comment": source.revision}


def _debian(package: Package) -> dict[str, object]:
    # A package's version may hold a colon and a plus sign, which purl wants escaped.
    version, architecture = quote(package.version, safe=""), package.architecture
    purl = f"pkg:deb/debian/{package.name}@{version}?arch={architecture}"
    entry = _entry(package.name, package.version, purl=purl)
    return entry | {"sourceInfo": f"built from the Debian source package {package.source}"}


def _python(program: Path) -> Iterator[dict[str, object]]:
    for metadata in sorted(program.glob("*.dist-info/METADATA")):
        fields = HeaderParser().parsestr(metadata.read_text())
        name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
        entry = _entry(name, fields["Version"], purl=f"pkg:pypi/{name}@{fields['Version']}")
        yield entry | {"licenseDeclared": fields["License-Expression"] or _UNKNOWN}


def _entry(name: str, version: str, *, purl: str) -> dict[str, object]:
    return {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", purl.removeprefix("pkg:")),
        "name": name,
        "versionInfo": version,
        "downloadLocation": _UNKNOWN,
        "licenseConcluded": _UNKNOWN,
        "licenseDeclared": _UNKNOWN,
        "copyrightText": _UNKNOWN,
        "filesAnalyzed": False,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": purl,
            }
        ],
    }


def _relation(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
