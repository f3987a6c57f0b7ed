"""Write what a scheduler needs to run a job with an image: manifests and scripts.

image.py     what an image knows of itself: its digest, user, port, launchers, drivers
job.py       one job, with every value checked
commands.py  the argument lists of torchrun and mpirun
targets.py   reads and fills a target's template; adding a target is adding a file to targets/
"""
