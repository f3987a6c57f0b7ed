"""How often Python looks for garbage in cycles: imported first of all, for what it does.

A command makes some hundred thousand objects that stay, most of them while modules are loaded. By default
Python looks through them after every 700 new ones, which is a tenth of the time of a command that has little
to do. The garbage that may now lie around until then is a few megabytes. Nor does it look once more at the
end, when all memory goes back at once: by then everything is set aside.
"""

from __future__ import annotations

import atexit
import gc

_NEW_OBJECTS = 50_000

gc.set_threshold(_NEW_OBJECTS)
atexit.register(gc.freeze)
