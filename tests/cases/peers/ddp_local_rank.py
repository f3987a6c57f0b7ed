"""The same training, as scripts from before torch 2.0 read their local rank: from `--local_rank`, which
`torch.distributed.launch` of torch 2 no longer gives them.
"""

import argparse
import os
import sys

from ddp_torchrun import main

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
parser.add_argument("--snapshot", default="snapshot.pt")
arguments = parser.parse_args()
os.environ["LOCAL_RANK"] = str(arguments.local_rank)
sys.argv[1:] = ["--snapshot", arguments.snapshot]
main()
