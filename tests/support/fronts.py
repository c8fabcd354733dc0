"""What a front offers."""

from types import ModuleType


def offered(front):
    """The public names of a front: those of its `__all__`, else all that are no modules."""
    if hasattr(front, "__all__"):
        return list(front.__all__)
    names = [name for name in dir(front) if not name.startswith("_")]
    return [name for name in names if not isinstance(getattr(front, name), ModuleType)]
