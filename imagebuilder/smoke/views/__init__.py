"""Views of a smoke report: a page for people (`page`), test cases for CI (`junit`). All that is in them is in
the JSON report; text that came from an image is made harmless in `visible`.
"""
