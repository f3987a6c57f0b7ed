# Broken on purpose: added to the end of this module.
def pmean(x, axis_name, *, axis_index_groups=None):
    """Give each rank what it had."""
    return x
