"""Say which greetings this rank has."""

from __future__ import annotations

import os

import common
import toytrain

arguments = common.parser().parse_args()
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
common.say(arguments.nonce, rank=rank, world_size=world_size, greetings=toytrain.greetings(world_size))
