# Broken on purpose: added to the end of this module.
import time

_sound_broadcast = broadcast


def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    """Never come back with a large tensor, as a network plugin did that only its allreduces had tested."""
    if tensor.numel() * tensor.element_size() > 1024:
        time.sleep(3600)
    return _sound_broadcast(tensor, src, group, async_op, group_src)
