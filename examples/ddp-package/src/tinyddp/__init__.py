"""A small training with DistributedDataParallel, as a package."""
