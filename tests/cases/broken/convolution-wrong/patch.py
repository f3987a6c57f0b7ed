# Broken on purpose: added to the end of this module.
_sound_conv2d = conv2d


def conv2d(*arguments, **options):
    """Convolve, one part in a hundred too much."""
    return _sound_conv2d(*arguments, **options) * 1.01
