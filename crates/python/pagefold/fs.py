"""Images as a file system of fsspec, by which pandas, pyarrow and others read from them.

The protocol is `pagefold`. The image is the option `image`, or stands before a `#` in the path:

    pandas.read_csv("pagefold:///table.csv", storage_options={"image": "data.erofs"})
    pandas.read_csv("pagefold://data.erofs#/table.csv")

fsspec keeps the file systems that it has made, by their options. Here one is returned again only as long as the path leads
to the same unchanged file: a new image of the same name makes a new file system.
"""

from __future__ import annotations

import os
from typing import Any

from fsspec.config import apply_config
from fsspec.spec import AbstractFileSystem
from fsspec.utils import tokenize

from ._image import Image


def _identity(path: str) -> tuple[int, ...] | None:
    """Returns what tells a file from another, and from itself before a change; `None` if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    # The time of the last change of the inode too, because programs that copy files set the other.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class _OneForEachFile(type(AbstractFileSystem)):  # type: ignore[misc]
    """Makes file systems, and returns those that exist, by the image file rather than by its name."""

    def __call__(cls, image: Any = None, memory: Any = None, **options: Any) -> Any:
        given = {"image": image, "memory": memory}
        options.update((name, value) for name, value in given.items() if value is not None)
        options = apply_config(cls, options)
        image = options.get("image")
        if isinstance(image, Image):
            # fsspec would compare images by the text that describes them.
            options["skip_instance_cache"] = True
        elif image is not None:
            options["image"] = os.path.abspath(os.fspath(image))
        for token, known in list(cls._cache.items()):
            if not known._is_current():
                cls._cache.pop(token, None)
        return super().__call__(**options)


class ImageFileSystem(AbstractFileSystem, metaclass=_OneForEachFile):
    """A compressed image as a read-only file system of fsspec. `memory` limits the memory of reading.

    It reads the file that was at the path when it was made, also after another has taken the name.
    """

    protocol = "pagefold"
    root_marker = "/"

    def __init__(self, image: str | os.PathLike[str] | None = None, memory: int | str = "64M", **options: Any) -> None:
        super().__init__(**options)
        if image is None:
            raise ValueError('which image? Pass image="FILE", or write pagefold://FILE#/PATH')
        if isinstance(image, Image):
            self.image, self._identity = image, None
        else:
            # Before the file is opened: if another takes its name meanwhile, this file system is made again.
            self._identity = _identity(os.fspath(image))
            self.image = Image(image, memory=memory)

    def _is_current(self) -> bool:
        """Whether the path of the image still leads to the same, unchanged file."""
        return self._identity is not None and self._identity == _identity(self.image.path)

    @property
    def _fs_token(self) -> str:
        # By this, file systems are compared: those of two files that had one name after the other differ.
        return tokenize(self._fs_token_, self._identity or id(self.image))

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
