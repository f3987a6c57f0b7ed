# Broken on purpose: added to the end of this module.
_sound_all_to_all = all_to_all_single


def all_to_all_single(output, input, *args, **kwargs):  # noqa: A002 - the name is torch's
    """Exchange, and hand the parts back in the wrong order."""
    work = _sound_all_to_all(output, input, *args, **kwargs)
    output.copy_(output.roll(output.numel() // 2))
    return work
