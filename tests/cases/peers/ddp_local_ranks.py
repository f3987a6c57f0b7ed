"""The same training with both spellings of the argument, which torch.distributed.launch of any release can start."""

import argparse
import os
import sys

from ddp_torchrun import main

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", "--local_rank", type=int, required=True)
parser.add_argument("--snapshot", default="snapshot.pt")
arguments = parser.parse_args()
os.environ["LOCAL_RANK"] = str(arguments.local_rank)
sys.argv[1:] = ["--snapshot", arguments.snapshot]
main()
