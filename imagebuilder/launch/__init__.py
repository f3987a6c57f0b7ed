"""Write what a scheduler needs to run a job with an image: manifests and scripts.

image.py     what an image knows of itself: its digest, user, port, launchers, drivers
job.py       one job, with every value checked
commands.py  the argument lists of torchrun and mpirun
pods.py      the pods of a job, for all targets on Kubernetes
smoke.py     the command of --smoke
targets.py   reads and fills a target's template; adding a target is adding a file to targets/
manifest.py  writes YAML
schema.py    checks a manifest; schemas/ has the structure of each kind
overlay.py   merges a user's YAML into a manifest
output.py    writes the folder of a job
"""
