"""Two hundred pushes through a proxy that cuts, delays, truncates and refuses at random: for `make soak`.

Ends with 1 where a push failed, or left anything in the registry that is not what was pushed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.support.faulty_pushes import compare, run_pushes

_CAPTION = """\
# Pushes through a proxy that breaks things

Made by `python -m bench.faulty_pushes` (`make soak`): a registry with TLS and a password, killed and
started again in every eighth push. After each push every blob is read back from the registry itself, by its
digest, and skopeo checks the image too. The proxy disturbs more than one request in five. Docker's own
registry drops an upload if a piece was cut or a reply was lost; its bytes are then sent again.
"""
_BESIDE = """
## Beside skopeo

The same images, pushed one after the other by each program through the same proxy and faults. No registry is
killed here. Failed means that the program gave up; its users would push again.

| program | pushes | failed | wrong results | requests | seconds |
|---|---:|---:|---:|---:|---:|
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pushes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compare", type=int, default=40, help="pushes by each program that is compared")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faulty-") as name:
        outcome = run_pushes(Path(name), arguments.pushes, arguments.seed)
        beside = compare(Path(name) / "compared", arguments.compare, arguments.seed)
    table = f"{_CAPTION}\n{outcome.table()}\nseed {arguments.seed}, {time.monotonic() - started:.0f} s\n"
    table += _BESIDE + "\n".join(each.row() for each in beside) + "\n"
    print(table)
    for line in (*outcome.failures, *outcome.wrong):
        print(line)
    if arguments.out:
        arguments.out.write_text(table, encoding="utf-8")
    return 1 if outcome.failures or outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
