"""Views of a smoke report: an HTML page for people (`page`), and test cases for CI (`junit`).

The JSON report has everything that they show. `visible` makes text from an image harmless.
"""
