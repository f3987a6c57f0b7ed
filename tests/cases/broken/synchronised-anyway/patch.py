# Broken on purpose: added to the end of this module.
_sound_step = SGD.step


def _step(self, closure=None):
    """Average the gradients over all ranks, and then step."""
    for group in self.param_groups:
        for parameter in group["params"]:
            if torch.distributed.is_initialized() and parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= torch.distributed.get_world_size()
    return _sound_step(self, closure)


SGD.step = _step
