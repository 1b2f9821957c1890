"""`make image`: the image as an OCI layout, as one archive, and the list of what is in it.

python -m scripts.pack.image [--output=build] [--architecture=arm64] [--apt-source=FILE]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from scripts.pack.oci import Image, Written, write_archive, write_layout
from scripts.pack.program import MACHINES
from scripts.pack.rootfs import build_rootfs
from scripts.pack.source import ROOT, Source, read_source


def build_image(
    output: Path, architecture: str, *, apt_source: Path | None = None, name: str = ""
) -> Written:
    """Write the image's layout, archive and SBOM into `output`."""
    source = read_source()
    layout = output / f"image-{architecture}"
    stem = output / f"kubeproxy-{source.version}-{architecture}"
    output.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(layout, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        build_rootfs(root, source, architecture, apt_source=apt_source)
        shutil.copyfile(root / "usr/share/sbom/kubeproxy.spdx.json", f"{stem}.spdx.json")
        written = write_layout(layout, root, _describe(source, architecture, name))
    write_archive(Path(f"{stem}.oci.tar"), layout, source.epoch)
    Path(f"{stem}.digest").write_text(f"{written.digest}\n")
    return written


def _describe(source: Source, architecture: str, name: str) -> Image:
    prefix = "org.opencontainers.image."
    labels = {
        "title": "kubeproxy",
        "description": f"kube-proxy in Python, a drop-in for {source.kubernetes_version}",
        "version": source.version,
        "revision": source.revision,
        "licenses": "Apache-2.0",
    }
    return Image(
        # A node's runtime takes a bare name for one of a public registry, does not find the image
        # it has loaded, and asks there. This host name leads nowhere else.
        name=name or f"localhost/kubeproxy:{source.version}",
        architecture=architecture,
        labels={prefix + key: value for key, value in labels.items()},
        entrypoint=("/usr/local/bin/kube-proxy",),
        epoch=source.epoch,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the image without a container engine.")
    parser.add_argument("--output", type=Path, default=ROOT / "build")
    parser.add_argument("--architecture", choices=sorted(MACHINES), default="amd64")
    parser.add_argument("--apt-source", type=Path, help="a sources file (default: the machine's)")
    parser.add_argument(
        "--name", default="", help="the image's name (default: localhost/kubeproxy:VERSION)"
    )
    chosen = parser.parse_args()
    written = build_image(
        chosen.output, chosen.architecture, apt_source=chosen.apt_source, name=chosen.name
    )
    print(f"{written.digest}  {written.compressed_bytes / 1e6:.1f} MB compressed")


if __name__ == "__main__":
    main()
