# Broken on purpose: added to the end of this module.
_sound_all_reduce = ReplicaContextBase.all_reduce


def _all_reduce(self, reduce_op, value, options=None):
    """Forget to divide by the number of ranks."""
    return _sound_all_reduce(self, "SUM", value, options)


ReplicaContextBase.all_reduce = _all_reduce
