"""Namespaces: everything that must match for bytes to be reusable, as one string."""

from __future__ import annotations

import hashlib
from typing import Final

MAX_READABLE: Final = 200


def namespace(**fields: object) -> str:
    """The canonical name of these fields: "k=v" sorted and joined by commas.

    Fields of equal text give equal names in every process, others different ones: what separates fields is escaped in them.
    A name longer than 200 bytes ends in a SHA-256 of the whole instead.
    """
    full = ",".join(f"{_plain(k)}={_plain(fields[k])}" for k in sorted(fields))
    data = full.encode()
    if len(data) <= MAX_READABLE:
        return full
    return data[: MAX_READABLE - 66].decode("utf-8", "ignore") + "~" + hashlib.sha256(data).hexdigest()


def _plain(value: object) -> str:
    out = str(value).replace("%", "%25").replace(",", "%2C").replace("=", "%3D").replace("~", "%7E")
    return "".join(c if c.isprintable() and c != " " else "".join(f"%{b:02X}" for b in c.encode("utf-8", "surrogatepass")) for c in out)
