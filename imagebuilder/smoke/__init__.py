"""The smoke test: does this image train on more than one node? See docs/explanation/smoke-test.md."""
