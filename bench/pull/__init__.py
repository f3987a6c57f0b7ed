"""The pulling side: `python -m bench.pull --help`."""
