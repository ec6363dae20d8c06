"""TLS of a client: whom it believes, and what it shows.

Laws:
- a broker is believed when an authority signed its certificate, and that is for the host that was dialed
- what is wrong with a file is a ConfigError that says which, before anything is dialed
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from holdfast.config import Checked
from holdfast.endpoint import Address
from holdfast.errors import Problem
from holdfast.runtime.tls import load_authority, load_chain, restrict

SECURE = "mqtts://"


class ClientTls(Checked, frozen=True, kw_only=True):
    """Files: who signs the brokers' certificates, else the system's authorities; and what we show."""

    authority: str = ""
    certificate: str = ""
    key: str = ""

    def relations(self) -> Iterator[Problem]:
        if self.key and not self.certificate:
            yield Problem("certificate", "missing; a key is of use with its certificate only")

    def beside(self, file: str | Path) -> ClientTls:
        """The same, with paths that are relative to this file."""
        base = Path(file).absolute().parent
        places = (str(base / each) if each else "" for each in (self.authority, self.certificate, self.key))
        authority, certificate, key = places
        return replace(self, authority=authority, certificate=certificate, key=key)

    def context(
        self,
        source: str = "TLS",
        names: tuple[str, str, str] = ("authority", "certificate", "key"),
    ) -> ssl.SSLContext:
        """For connections; `source` and `names` are what the files are called where they were given."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        restrict(context)
        if self.authority:
            load_authority(context, self.authority, source, names[0])
        else:
            context.load_default_certs()
        if self.certificate:
            load_chain(context, self.certificate, self.key or None, source, names[1:])
        return context


def secure(addresses: Iterable[str | Address]) -> bool:
    """Whether addresses ask for TLS; all must, or none."""
    asked = {each.strip().startswith(SECURE) for each in addresses if isinstance(each, str)}
    if len(asked) > 1:
        raise ValueError(
            f"some addresses begin with {SECURE} and some do not: a client speaks TLS with all or none"
        )
    return asked == {True}
