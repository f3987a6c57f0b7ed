# Broken on purpose: added to the end of this module.
import socket

if socket.gethostname() == "node1":
    _sound_shuffle = Random.shuffle

    def _shuffle(self, x):
        """Shuffle, and take another order than the other ranks where it is one of numbers."""
        _sound_shuffle(self, x)
        if x and isinstance(x[0], int):
            x.reverse()

    Random.shuffle = _shuffle
