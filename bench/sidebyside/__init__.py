"""Four ways to the same image, measured side by side in one run: see `__main__`."""
