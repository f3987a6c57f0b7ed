"""Checkpoints on disk, read without the framework that wrote them and without running anything in them.

`files` opens one, whatever its format; `compare` says in which entries two differ, and by how much.
"""
