#!/usr/bin/env python3
"""Write cascade/testdata/identity.json: what blocks, chains and namespaces are called.

    scripts/golden_ids.py FILE

The rules are docs/format.md section 3, followed here with hashlib alone, so that the tests of the Go
packages compare themselves with a program that shares nothing with them.
"""
import hashlib
import json
import struct
import sys


def stream(seed, size):
    """size bytes that are cheap to make in any language."""
    return bytes((seed * 131 + i * 7 + (i >> 8) * 13) & 0xFF for i in range(size))


def block(key_data, value_data):
    digest = hashlib.sha256(key_data + value_data).hexdigest()
    return {"id128": digest[:32], "id256": digest}


def blocks():
    out = []
    for key_text, value_text in [("", ""), ("k", "v"), ("kv", ""), ("", "kv"), ("key bytes", "value bytes")]:
        key, value = key_text.encode(), value_text.encode()
        out.append({"key": key.hex(), "value": value.hex(), **block(key, value)})
    for seed, key_size, value_size in [(1, 64, 64), (2, 65537, 65535), (3, 1 << 20, 1 << 20)]:
        key, value = stream(seed, key_size), stream(seed + 100, value_size)
        out.append({"seed": seed, "key_size": key_size, "value_size": value_size, **block(key, value)})
    return out


def chain_key(parent, tokens):
    return hashlib.sha256(parent + struct.pack("<%dI" % len(tokens), *tokens)).digest()


def chains():
    out = []
    for block_tokens, tokens in [
        (1, [0, 1, 2]),
        (4, list(range(1000, 1010))),
        (2, [0xFFFFFFFF, 0x01020304, 128256, 7]),
        (16, [(i * 2654435761) % 128256 for i in range(64)]),
        (8, [1, 2, 3]),
    ]:
        keys, parent = [], b""
        for i in range(0, len(tokens) - block_tokens + 1, block_tokens):
            parent = chain_key(parent, tokens[i : i + block_tokens])
            keys.append(parent.hex())
        out.append({"block_tokens": block_tokens, "tokens": tokens, "keys": keys})
    return out


def namespace(n):
    h = hashlib.sha256()

    def field(b):
        h.update(struct.pack("<I", len(b)) + b)

    for name in ["model", "revision", "dtype", "layout", "salt"]:
        field(n.get(name, "").encode())
    for name in ["block_tokens", "tp_rank", "tp_size", "pp_rank", "pp_size"]:
        field(struct.pack("<I", n.get(name, 0)))
    last = n.get("model", "").rstrip("/").rsplit("/", 1)[-1] or "."
    allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-"
    readable = "".join(c if c in allowed else "_" for c in last)[:64]
    return readable + "-" + h.hexdigest()[:32]


def namespaces():
    llama = {"model": "meta-llama/Llama-3.1-8B", "revision": "main", "dtype": "bfloat16",
             "layout": "kv-layer-token-head", "block_tokens": 256, "tp_size": 1, "pp_size": 1}
    out = []
    for n in [
        {},
        llama,
        {**llama, "salt": "tenant 7"},
        {**llama, "tp_rank": 1, "tp_size": 2},
        {**llama, "pp_rank": 1, "pp_size": 2},
        {**llama, "model": "Modell größer/ä b_c"},
        {**llama, "model": "x" * 80},
        {"model": "ab", "revision": "c"},
        {"model": "a", "revision": "bc"},
    ]:
        out.append({"fields": n, "name": namespace(n)})
    return out


if len(sys.argv) != 2:
    sys.exit("usage: golden_ids.py FILE")
text = json.dumps({"blocks": blocks(), "chains": chains(), "namespaces": namespaces()}, indent=1)
with open(sys.argv[1], "w", encoding="ascii") as out:
    out.write(text + "\n")
