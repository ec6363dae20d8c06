"""Who a client says it is, with the password in a file: nowhere that others could read it; and its TLS.

Laws:
- files are read at every connect, so that a new password needs no restart
- a file that everybody on the machine can read is refused
- neither the password nor anything of it is in an error or a representation
"""

from __future__ import annotations

from pathlib import Path
from ssl import SSLContext

from msgspec import Struct

from holdfast.client.tls import ClientTls
from holdfast.errors import ConfigError, Problem
from holdfast.security.config import exposed

PASSWORD_BYTES_MAX = 65_535  # what CONNECT holds


class Login(Struct, frozen=True):
    """`password_file` holds the password in its first line; without one, only the name is said.

    Without `tls` it depends on the address whether a connection is in TLS."""

    username: str | None = None
    password_file: str = ""
    tls: ClientTls | None = None

    def password(self) -> bytes | None:
        return read_password(self.password_file) if self.password_file else None

    def context(self) -> SSLContext | None:
        return None if self.tls is None else self.tls.context()


NO_LOGIN = Login()


def read_password(path: str) -> bytes:
    """The first line of a file that only some may read; what a shell hands over as /dev/fd/N is one, too."""
    try:
        with Path(path).open("rb") as file:
            password = file.readline(PASSWORD_BYTES_MAX + 3).rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(path, [Problem("password file", f"cannot be read: {error.strerror}")]) from None
    problems = exposed("password file", path) if Path(path).is_file() else []
    if problems:
        raise ConfigError(path, problems)
    if not 1 <= len(password) <= PASSWORD_BYTES_MAX:
        raise ConfigError(path, [Problem("password file", "its first line is to be the password")])
    return password
