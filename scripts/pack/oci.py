"""An OCI image layout with one layer, written file by file without a container engine.

The format is the OCI image specification 1.0: blobs by digest, a config, a manifest, an index.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from scripts.pack.archive import compress, write_tar

_TYPE = "application/vnd.oci.image."
_MANIFEST = _TYPE + "manifest.v1+json"


class Image(NamedTuple):
    """What an image says about itself."""

    name: str
    architecture: str
    labels: Mapping[str, str]
    entrypoint: tuple[str, ...]
    epoch: int


class Written(NamedTuple):
    """A written image: the digest by which it is known, and its size as it is transferred."""

    digest: str
    compressed_bytes: int


def write_layout(layout: Path, root: Path, image: Image) -> Written:
    """Write the files below `root` as an image into the new folder `layout`."""
    plain = io.BytesIO()
    write_tar(plain, root, image.epoch)
    layer = compress(plain.getvalue())
    moment = datetime.fromtimestamp(image.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = _json(_config(image, _digest(plain.getvalue()), moment))
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _blob(layout, config, _TYPE + "config.v1+json"),
            "layers": [_blob(layout, layer, _TYPE + "layer.v1.tar+gzip")],
            "annotations": dict(image.labels),
        }
    )
    described = _blob(layout, manifest, _MANIFEST) | {
        "annotations": {
            "org.opencontainers.image.ref.name": image.name.partition(":")[2],
            "io.containerd.image.name": image.name,
        },
        "platform": {"architecture": image.architecture, "os": "linux"},
    }
    index = {"schemaVersion": 2, "mediaType": _TYPE + "index.v1+json", "manifests": [described]}
    (layout / "index.json").write_bytes(_json(index))
    (layout / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    return Written(_digest(manifest), len(layer))


def write_archive(archive: Path, layout: Path, epoch: int) -> None:
    """Pack a layout into one file, as engines load it."""
    with archive.open("wb") as out:
        write_tar(out, layout, epoch)


def _config(image: Image, layer: str, moment: str) -> dict[str, object]:
    return {
        "created": moment,
        "architecture": image.architecture,
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin"],
            "Entrypoint": list(image.entrypoint),
            "Labels": dict(image.labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [layer]},
        "history": [{"created": moment, "created_by": "make image"}],
    }


def _blob(layout: Path, content: bytes, media_type: str) -> dict[str, object]:
    """Store a blob under its digest. Return its descriptor."""
    digest = _digest(content)
    blobs = layout / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    (blobs / digest.removeprefix("sha256:")).write_bytes(content)
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
