"""Resolve every node's name on this node, and report this node's own name."""

from __future__ import annotations

import socket

import common

parser = common.parser(ranks=False)
parser.add_argument("names", nargs="+")
arguments = parser.parse_args()


def addresses(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except OSError as error:
        return [f"! {error.strerror or error}"]
    return sorted({str(entry[4][0]) for entry in found})


own = socket.gethostname()
common.say(arguments.nonce, own=own, names={name: addresses(name) for name in (own, *arguments.names)})
