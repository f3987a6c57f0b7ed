"""imagebuilder: container images for distributed training, from a pinned recipe to a proven push."""

__version__ = "0.1.0"
