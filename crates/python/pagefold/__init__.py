"""Arrays that are larger than the memory they take, compressed images, and a store of compressed pages.

>>> import pagefold
>>> table = pagefold.zeros((1000, 1000), "float64", memory="1M")
>>> table[:] = 1
>>> float(table.sum())
1000000.0

- `empty`, `zeros`, `full`, `from_file`: arrays of NumPy, each in a region
- `numpy_memory`: a block in which all large arrays of NumPy are made in one region; `wrap` carries it to threads
- `chunks`: a module of operations on whole arrays in parts, without faults and by all CPUs
- `Budget`: a limit on memory that several arrays share, or that follows what the machine has available
- `Region`: compressed memory as an object with the buffer protocol, without NumPy
- `Image`: a compressed read-only file system (EROFS) in a file; `pagefold.fs` makes it known to fsspec
- `Store`: an array of compressed pages

Sizes are numbers of bytes, or texts such as "512M" and "1.5 GiB".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._arrays import empty, from_file, full, region_of, zeros
from ._image import Image, ImageFile
from ._native import (
    Budget,
    Error,
    ImageEntry,
    ImageError,
    NotAllowedError,
    Region,
    RegionStats,
    Store,
    __version__,
    format_size,
    parse_size,
)
from ._numpy import NumpyMemory, numpy_memory, use_numpy_memory, wrap

if TYPE_CHECKING:
    from . import chunks

__all__ = [
    "Budget",
    "Error",
    "Image",
    "ImageEntry",
    "ImageError",
    "ImageFile",
    "NotAllowedError",
    "NumpyMemory",
    "Region",
    "RegionStats",
    "Store",
    "__version__",
    "empty",
    "format_size",
    "from_file",
    "full",
    "numpy_memory",
    "parse_size",
    "region_of",
    "use_numpy_memory",
    "wrap",
    "zeros",
]


def __getattr__(name: str) -> Any:
    # `pagefold.chunks` is imported when it is first used: it needs NumPy, and the rest does not.
    if name == "chunks":
        from importlib import import_module

        return import_module(".chunks", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
