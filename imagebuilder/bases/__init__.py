"""Images of registries as bases: what their layers make together, and what the system in them is.

tree.py    the files that layers leave, one over the other, without unpacking anything
system.py  distribution, packages, archives and users, read from those files
read.py    from a recipe's base to what the lock says of it
fetch.py   the layers of a locked base, into the store
"""
