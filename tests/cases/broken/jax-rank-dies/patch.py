# Broken on purpose: added to the end of this module.
import os as _os
import signal as _signal
import socket as _socket

if _socket.gethostname() == "node1":
    _calls = 0
    _sound_device_put = device_put

    def device_put(*arguments, **options):
        """Die in the thirtieth step, each of which puts six arrays there."""
        global _calls
        _calls += 1
        if _calls == 30 * 6:
            _os.kill(_os.getpid(), _signal.SIGKILL)
        return _sound_device_put(*arguments, **options)
