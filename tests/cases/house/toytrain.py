"""A framework for tests of the catalog: ranks know each other's greetings."""

__version__ = "3.4.5"


def greetings(world_size: int) -> list[str]:
    return [f"hello from rank {rank}" for rank in range(world_size)]
