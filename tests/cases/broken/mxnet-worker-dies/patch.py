# Broken on purpose: added to the end of this module.
import os
import signal
import socket

if socket.gethostname() == "node1":
    _pushes = 0
    _sound_push = KVStore.push

    def _push(self, *arguments, **options):
        """Die in the thirtieth step, each of which pushes four gradients."""
        global _pushes
        _pushes += 1
        if _pushes == 30 * 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return _sound_push(self, *arguments, **options)

    KVStore.push = _push
