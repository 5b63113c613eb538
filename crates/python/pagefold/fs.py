"""Images as a file system of fsspec, by which pandas, pyarrow and others read from them.

The protocol is `pagefold`. The image is the option `image`, or stands before a `#` in the path:

    pandas.read_csv("pagefold:///table.csv", storage_options={"image": "data.erofs"})
    pandas.read_csv("pagefold://data.erofs#/table.csv")
"""

from __future__ import annotations

import os
from typing import Any

from fsspec.spec import AbstractFileSystem

from ._image import Image


class ImageFileSystem(AbstractFileSystem):
    """A compressed image as a read-only file system of fsspec. `memory` limits the memory of reading."""

    protocol = "pagefold"
    root_marker = "/"

    def __init__(self, image: str | os.PathLike[str] | None = None, memory: int | str = "64M", **options: Any) -> None:
        super().__init__(**options)
        if image is None:
            raise ValueError('which image? Pass image="FILE", or write pagefold://FILE#/PATH')
        self.image = image if isinstance(image, Image) else Image(image, memory=memory)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = os.fspath(path)
        if path.startswith("pagefold://"):
            path = path.removeprefix("pagefold://").rpartition("#")[2]
        return "/" + path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        image, hash, _ = path.removeprefix("pagefold://").rpartition("#")
        return {"image": image} if hash and path.startswith("pagefold://") else {}

    def _info(self, path: str, entry: Any) -> dict[str, Any]:
        kinds = {"symlink": "link"}
        info = {
            "name": path,
            "size": 0 if entry.kind == "directory" else entry.size,
            "type": kinds.get(entry.kind, entry.kind),
            "mode": entry.mode,
            "uid": entry.uid,
            "gid": entry.gid,
            "nlink": entry.nlink,
            "ino": entry.inode,
            "mtime": entry.mtime_ns / 1e9,
            "islink": entry.kind == "symlink",
        }
        if entry.kind == "symlink":
            info["destination"] = entry.readlink()
        return info

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return self._info(path, self.image.stat(path))

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        path = self._strip_protocol(path)
        entry = self.image.stat(path)
        if entry.kind == "directory":
            found = [(f"{path.rstrip('/')}/{each.name}", each) for each in self.image.scandir(path)]
        else:
            found = [(path, entry)]
        return [self._info(*each) if detail else each[0] for each in found]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        entry = self.image.stat(self._strip_protocol(path))
        start, stop, _ = slice(start, end).indices(entry.size)
        return entry.read(start, max(stop - start, 0))

    def modified(self, path: str) -> Any:
        from datetime import datetime, timezone

        return datetime.fromtimestamp(self.info(path)["mtime"], timezone.utc)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return self.image.open(self._strip_protocol(path), mode)
