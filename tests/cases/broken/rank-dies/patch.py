# Broken on purpose: added to the end of this module.
import signal
import socket

if socket.gethostname() == "node1":
    _steps = 0
    _sound_forward = DistributedDataParallel.forward

    def _forward(self, *inputs, **kwargs):
        """Die in the thirtieth step."""
        global _steps
        _steps += 1
        if _steps == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return _sound_forward(self, *inputs, **kwargs)

    DistributedDataParallel.forward = _forward
