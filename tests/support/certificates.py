"""An authority of our own and what it signs, made by openssl as the documentation says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from msgspec import Struct

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30")
ENDED = ("-crl_lastupdate", "20200101000000Z", "-crl_nextupdate", "20200201000000Z")
HERE = "IP:127.0.0.1,DNS:localhost"


class Issued(Struct, frozen=True):
    certificate: Path
    key: Path


class Authority:
    """Files in a directory; `issue` is about 10 ms."""

    def __init__(self, directory: Path, name: str = "plant-ca") -> None:
        self.directory = directory
        self.certificate = directory / f"{name}.pem"
        self._key = directory / f"{name}.key"
        _openssl("req", "-x509", *KEY, "-keyout", self._key, "-out", self.certificate, "-subj", f"/CN={name}")

    def issue(
        self, name: str, *, alternatives: str = HERE, file: str | None = None, subject: str = ""
    ) -> Issued:
        issued = Issued(self.directory / f"{file or name}.pem", self.directory / f"{file or name}.key")
        _openssl(
            *("req", "-x509", "-CA", self.certificate, "-CAkey", self._key, *KEY),
            *("-keyout", issued.key, "-out", issued.certificate, "-subj", subject or f"/CN={name}"),
            *("-addext", f"subjectAltName={alternatives}", "-addext", "basicConstraints=critical,CA:FALSE"),
        )
        issued.key.chmod(0o600)
        return issued

    def revoke(self, *revoked: Issued, ended: bool = False) -> Path:
        """The list of these, as the authority signs it; another one at every call."""
        database, config = self.directory / "index.txt", self.directory / "ca.toml"
        lines = []
        for each in revoked:
            serial = _openssl("x509", "-in", each.certificate, "-noout", "-serial").strip().partition("=")[2]
            lines.append(f"R\t491231235959Z\t260101000000Z\t{serial}\tunknown\t/CN=x\n")
        database.write_text("".join(lines))
        config.write_text(f"[ca]\ndefault_ca = d\n[d]\ndatabase = {database}\ndefault_md = sha256\n")
        made = self.directory / f"revoked-{len(list(self.directory.glob('revoked-*')))}.pem"
        _openssl(
            *("ca", "-gencrl", "-config", config, "-keyfile", self._key, "-cert", self.certificate),
            *(ENDED if ended else ("-crldays", "30")),
            *("-out", made),
        )
        return made


def _openssl(*arguments: object) -> str:
    command = ["openssl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
