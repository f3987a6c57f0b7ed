"""Open a checkpoint, whatever its format; what is in the file decides, not its name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from imagebuilder.checkpoints import safetensors, torchfile
from imagebuilder.checkpoints.tensor import Checkpoint, Incomparable

_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Checkpoint]:
    """Open a checkpoint; its tensors can be read as long as the block lasts.

    Raises:
        Incomparable: there is no such file, or it is not a checkpoint that can be read here.

    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise Incomparable(f"cannot be read: {error.strerror}", where=str(path)) from None
    with file:
        size = os.fstat(file.fileno()).st_size

        def read(offset: int, length: int) -> bytes:
            pieces = []
            left = length
            # Not asked for more than there is: room would be made for it first.
            while left and 0 <= offset <= size - length:
                # One call returns no more than 2 GiB.
                piece = os.pread(file.fileno(), left, offset + length - left)
                if not piece:
                    break
                pieces.append(piece)
                left -= len(piece)
            if left:
                raise Incomparable("ends too early: it is damaged, or still being written", where=str(path))
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

        start = read(0, min(size, 16))
        if start.startswith(_ZIP):
            yield torchfile.load(path, read, file)
        elif start[8:9] == b"{":
            yield safetensors.load(path, read, size)
        elif start.startswith(_PICKLE):
            raise Incomparable(
                "is of the format of torch before 1.6, or a plain pickle",
                where=str(path),
                hint="load it and save it again with a torch of today",
            )
        else:
            raise Incomparable("is neither a file of torch.save nor of safetensors", where=str(path))
