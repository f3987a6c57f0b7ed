"""MXNet's own launch.py, which was written for Pythons before 3.9: there threads had `isAlive`."""

import runpy
import threading
from importlib.util import find_spec
from pathlib import Path

threading.Thread.isAlive = threading.Thread.is_alive
mxnet = Path(find_spec("mxnet").origin).parent
runpy.run_path(str(mxnet / "tools" / "launch.py"), run_name="__main__")
