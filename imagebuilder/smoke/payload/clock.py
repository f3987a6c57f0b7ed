"""Report the time on this node, as a rank would see it."""

from __future__ import annotations

import time

import common

arguments = common.parser(ranks=False).parse_args()
common.say(arguments.nonce, now=time.time())
