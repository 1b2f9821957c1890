"""Images are written as containerd reads them."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

from kpctl.kubernetes.images import Image, write_archive


def test_images_of_one_folder_share_a_layer(tmp_path: Path) -> None:
    """Every blob has its digest as name, and is there once."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "program").write_text("x")
    images = [Image("a:1", root, entrypoint=("/program",)), Image("b:1", root, command=("sh",))]
    write_archive(tmp_path / "images.tar", images)
    with tarfile.open(tmp_path / "images.tar") as tar:
        members = {m.name: read(tar, m) for m in tar.getmembers()}
    index = json.loads(members["index.json"])
    assert [m["annotations"]["io.containerd.image.name"] for m in index["manifests"]] == [
        *("a:1", "b:1")
    ]
    manifests = [blob(members, entry) for entry in index["manifests"]]
    layers = {m["layers"][0]["digest"] for m in manifests}
    assert len(layers) == 1
    assert blob(members, manifests[0]["config"])["config"]["Entrypoint"] == ["/program"]


def read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = tar.extractfile(member)
    assert content is not None
    return content.read()


def blob(members: dict[str, bytes], described: dict[str, Any]) -> Any:
    digest = str(described["digest"]).removeprefix("sha256:")
    content = members[f"blobs/sha256/{digest}"]
    assert hashlib.sha256(content).hexdigest() == digest
    return json.loads(content)
