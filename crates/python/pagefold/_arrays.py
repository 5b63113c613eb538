"""Arrays of NumPy, each in a region.

The array's base holds a buffer of the region, so the region lives as long as the array or any view of it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._native import Budget, Region

if TYPE_CHECKING:
    import numpy as np

Limit = int | str | Budget | None


def _array(region: Region | None, shape: Any, dtype: Any, order: str, offset: int = 0) -> np.ndarray:
    import numpy as np

    if region is None:  # no bytes, so there is nothing to compress
        return np.empty(shape, dtype, order=order)
    return np.ndarray(shape, dtype, buffer=region, offset=offset, order=order)


def _dtype_and_size(shape: Any, dtype: Any) -> tuple[np.dtype, int]:
    import numpy as np

    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"an array of {dtype} holds references to objects, whose memory is elsewhere")
    if isinstance(shape, (int, np.integer)):
        shape = (shape,)
    size = dtype.itemsize
    for length in shape:
        if length < 0:
            raise ValueError("negative dimensions are not allowed")
        size *= int(length)
    return dtype, size


def empty(shape: Any, dtype: Any = float, memory: Limit = "512M", *, order: str = "C", **settings: Any) -> np.ndarray:
    """Returns an array in a new region, of which at most `memory` is resident. Its bytes are zero.

    `memory` is a size, a `Budget` that several arrays share, or None: then the arrays may take what the machine has
    available, and give it back when that becomes short.
    `settings` are the keywords of `Region`: `pool`, `codec`, `level`, `system_calls`.
    """
    dtype, size = _dtype_and_size(shape, dtype)
    region = Region(size, memory, **settings) if size else None
    return _array(region, shape, dtype, order)


def zeros(shape: Any, dtype: Any = float, memory: Limit = "512M", *, order: str = "C", **settings: Any) -> np.ndarray:
    """Returns an array of zeroes in a new region. They take no memory until they are touched. See `empty`."""
    return empty(shape, dtype, memory, order=order, **settings)


def full(
    shape: Any, fill_value: Any, dtype: Any = None, memory: Limit = "512M", *, order: str = "C", **settings: Any
) -> np.ndarray:
    """Returns an array in a new region in which all elements are `fill_value`. See `empty`."""
    import numpy as np

    array = empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, memory, order=order, **settings)
    array[...] = fill_value
    return array


def from_file(
    path: str | os.PathLike[str],
    dtype: Any = "uint8",
    shape: Any = None,
    memory: Limit = "512M",
    *,
    offset: int = 0,
    order: str = "C",
    **settings: Any,
) -> np.ndarray:
    """Returns an array that begins with the bytes of a file from `offset` on, each read when it is touched first.

    Changes stay in memory: the file is only read, and must not change meanwhile. Without `shape`, the array has one
    dimension and goes up to the end of the file. See `empty` for `settings`.
    """
    import numpy as np

    dtype = np.dtype(dtype)
    length = os.stat(path).st_size - offset
    if offset < 0 or length < 0:
        raise ValueError(f"the file has no byte {offset}")
    if shape is None:
        if length % dtype.itemsize:
            raise ValueError(f"{length} bytes are no whole number of elements of {dtype.itemsize} bytes")
        shape = (length // dtype.itemsize,)
    dtype, size = _dtype_and_size(shape, dtype)
    if size > length:
        raise ValueError(f"an array of {size} bytes does not fit into the {length} bytes of the file")
    region = Region(0, memory, file=path, **settings) if size else None
    return _array(region, shape, dtype, order, offset)


def region_of(array: Any) -> Region | None:
    """Returns the region in which the bytes of an array or memoryview are, or None.

    Arrays that `numpy_memory` made have no region of that kind.
    """
    owner = array
    while owner is not None and not isinstance(owner, Region):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner
