"""Base images from registries: read their files and the system in them.

tree.py    merges the files of all layers, without unpacking anything
system.py  reads distribution, packages, archives and users from those files
read.py    makes the lock's entry for a recipe's base
fetch.py   downloads the layers of a locked base into the store
"""
