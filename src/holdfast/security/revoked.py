"""Lists of revoked certificates (CRL): whose they are, and until when they hold.

OpenSSL judges certificates by them; this says beforehand that a list would let nobody in.

Laws:
- what cannot be read here is left to OpenSSL: it is no reason to refuse a list
- nothing here trusts a list: whether its authority signed it, OpenSSL says with each certificate
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

SEQUENCE, SET, INTEGER, OBJECT, UTC_TIME, GENERAL_TIME, VERSION = 0x30, 0x31, 0x02, 0x06, 0x17, 0x18, 0xA0
LISTS = re.compile(rb"-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)

Name: TypeAlias = tuple[tuple[bytes, str], ...]  # kinds and values, in their order


class RevokedList(NamedTuple):
    issuer: Name
    until: datetime | None  # None: it has no end


def why_useless(lists: bytes, authorities: list[bytes], now: datetime) -> str:
    """Why nobody is believed by these lists (PEM), of these authorities (DER); empty if that is not so."""
    try:
        found = [_read_list(each) for each in _ders(lists)]
        names = [_subject_of(each) for each in authorities]
    except (ValueError, IndexError):
        return ""
    theirs = [each for each in found if each.issuer in names]
    if found and not theirs:
        return (
            f"is of {_said(found[0].issuer)}, and the authority is {_said(names[0]) if names else 'nobody'}"
        )
    lasting = {each.issuer for each in theirs if each.until is None or each.until > now}
    for each in theirs:
        if each.issuer not in lasting and each.until is not None:
            return f"is of {_said(each.issuer)} and ended at {each.until:%Y-%m-%dT%H:%M:%SZ}; get a new one"
    return ""


def _said(name: Name) -> str:
    return repr(", ".join(value for _, value in name))


def _ders(pem: bytes) -> Iterator[bytes]:
    for each in LISTS.findall(pem):
        yield base64.b64decode(each)


def _parts(der: bytes) -> Iterator[tuple[int, bytes]]:
    """The tags and values that follow each other."""
    at = 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:
            digits = size & 0x7F
            size, at = int.from_bytes(der[at : at + digits], "big"), at + digits
        if at + size > len(der):
            raise ValueError("cut")
        yield tag, der[at : at + size]
        at += size


def _inside(der: bytes) -> list[tuple[int, bytes]]:
    """The parts of what is to be signed, without a version in front."""
    ((_, whole),) = _parts(der)
    (_, signed), *_ = _parts(whole)
    parts = list(_parts(signed))
    return parts[1:] if parts[0][0] in (INTEGER, VERSION) else parts


def _read_list(der: bytes) -> RevokedList:
    _, (_, issuer), _, *rest = _inside(der)
    ends = rest[0] if rest and rest[0][0] in (UTC_TIME, GENERAL_TIME) else None
    return RevokedList(_name(issuer), None if ends is None else _time(*ends))


def _subject_of(certificate: bytes) -> Name:
    parts = _inside(certificate)
    serial = 1 if parts[0][0] == INTEGER else 0
    return _name(parts[serial + 3][1])


def _name(der: bytes) -> Name:
    """Letters and spaces count as OpenSSL has them: however they are written."""
    found = []
    for _, together in _parts(der):
        for _, pair in _parts(together):
            (_, kind), (_, value) = _parts(pair)
            found.append((kind, " ".join(value.decode(errors="replace").lower().split())))
    return tuple(found)


def _time(tag: int, value: bytes) -> datetime:
    digits = value.decode()
    if tag == UTC_TIME:
        digits = ("19" if digits[:2] >= "50" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
