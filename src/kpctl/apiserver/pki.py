"""Certificates for tests and benchmarks, made with the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec


class Pki(msgspec.Struct, frozen=True):
    """A certificate authority in a folder, with the certificates it has signed."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def pair(self, name: str) -> tuple[Path, Path]:
        """Return the paths of certificate and key of this name."""
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def sign(self, name: str, subject: str, *extensions: str) -> tuple[Path, Path]:
        """Make a key and a certificate for it. Return their paths."""
        certificate, key = self.pair(name)
        _request(
            key,
            certificate,
            subject,
            *("-CA", str(self.ca), "-CAkey", str(self.folder / "ca.key")),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *(word for extension in extensions for word in ("-addext", extension)),
        )
        return certificate, key


def make_authority(folder: Path) -> Pki:
    made = Pki(folder)
    _request(folder / "ca.key", made.ca, "/CN=test-ca")
    return made


def _request(key: Path, certificate: Path, subject: str, *options: str) -> None:
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", subject),
        *options,
    )


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
