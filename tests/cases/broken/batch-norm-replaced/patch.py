# Broken on purpose: added to the end of this module.
def _forward(self, input):
    """Normalise, and remember nothing."""
    return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)


_BatchNorm.forward = _forward
