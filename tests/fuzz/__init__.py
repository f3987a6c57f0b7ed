"""Hostile input by the thousand: whatever comes, a value or an error of ours, in bounds, and nothing else.

mutation.py  makes bad input out of good: bytes, JSON, zip files, tars, answers of a registry
targets.py   what reads it
worker.py    runs one target, watches time, memory, files and connections
__main__.py  runs all of them, and writes the table
"""
