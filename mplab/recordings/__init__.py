"""What machines with a GPU answered: files with provenance, how they are made and read."""

from mplab.recordings.files import (
    SCHEMA,
    VERSION,
    Recording,
    available,
    caption,
    first,
    folder,
    how_to_record,
    load,
)

__all__ = [
    "SCHEMA",
    "VERSION",
    "Recording",
    "available",
    "caption",
    "first",
    "folder",
    "how_to_record",
    "load",
]
