# Broken on purpose: added to the end of this module.
import os as _os
import signal as _signal
import socket as _socket

if _socket.gethostname() == "node1":
    _calls = 0
    _sound_call = Function.__call__

    def _call(self, *arguments, **options):
        """Die in the thirtieth step, each of which is one call."""
        global _calls
        _calls += 1
        if _calls == 30:
            _os.kill(_os.getpid(), _signal.SIGKILL)
        return _sound_call(self, *arguments, **options)

    Function.__call__ = _call
