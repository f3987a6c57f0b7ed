# Broken on purpose: added to the end of this module.
class DistributedDataParallel(Module):
    """A wrapper that synchronises nothing."""

    def __init__(self, module, *_arguments, **_options):
        super().__init__()
        self.module = module

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)
