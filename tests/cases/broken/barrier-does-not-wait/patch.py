# Broken on purpose: added to the end of this module.
def barrier(group=None, async_op=False, device_ids=None):
    """Wait for nobody."""
