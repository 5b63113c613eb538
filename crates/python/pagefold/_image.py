"""Images: compressed read-only file systems (EROFS) in a file."""

from __future__ import annotations

import io
import os
import posixpath
from collections.abc import Iterator
from typing import Any

from . import _native


class ImageFile(io.RawIOBase):
    """A file of an image, open for reading, without a buffer."""

    def __init__(self, entry: _native.ImageEntry, name: str = "") -> None:
        self._entry = entry
        self._position = 0
        self.name = name or entry.name
        self.mode = "rb"

    @property
    def size(self) -> int:
        """The length of the file in bytes."""
        return self._entry.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._checkOpen()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._checkOpen()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}.get(whence)
        if base is None:
            raise ValueError(f"whence must be 0, 1 or 2, not {whence}")
        if base + offset < 0:
            raise ValueError(f"position {base + offset} lies before the file")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Reads bytes into a writable buffer. Returns how many; 0 at the end of the file."""
        self._checkOpen()
        with memoryview(buffer).cast("B") as view:
            count = self._entry.readinto(view, self._position)
        self._position += count
        return count

    def readall(self) -> bytes:
        self._checkOpen()
        data = self._entry.read(self._position)
        self._position += len(data)
        return data

    def _checkOpen(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


class Image(_native.Image):
    """A compressed read-only file system (EROFS) in a file.

        with pagefold.Image("data.erofs") as image:
            for folder, folders, files in image.walk():
                print(folder, files)
            table = image.read("/table.csv")
            with image.open("/notes.txt", "r") as notes:
                print(notes.readline())

    Reading takes at most `memory` bytes. Paths are those in the image; symbolic links lead to files of the image only.
    """

    def __enter__(self) -> Image:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def listdir(self, path: str = "/") -> list[str]:
        """Returns the names of the entries of a directory."""
        return [entry.name for entry in self.scandir(path)]

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory at a path."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def walk(self, top: str = "/") -> Iterator[tuple[str, list[str], list[str]]]:
        """Yields the path of each directory from `top` on, and the names of the directories and other files in it.

        As `os.walk`: names that the caller removes from the list of directories are not visited, and symbolic links are
        not followed.
        """
        # A stack rather than recursion: images may have folders deeper than the interpreter's limit.
        waiting = [top]
        while waiting:
            path = waiting.pop()
            folders: list[str] = []
            files: list[str] = []
            for entry in self.scandir(path):
                (folders if entry.kind == "directory" else files).append(entry.name)
            yield path, folders, files
            waiting.extend(posixpath.join(path, folder) for folder in reversed(folders))

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Returns the contents of a file, or `size` bytes of them from `offset` on."""
        return self.stat(path).read(offset, size)

    def readlink(self, path: str) -> str:
        """Returns the target of a symbolic link."""
        return self.stat(path, follow_symlinks=False).readlink()

    def open(self, path: str, mode: str = "rb", buffering: int = -1, **text: Any) -> Any:
        """Opens a file for reading: "rb" for bytes, "r" for text with `encoding`, `errors` and `newline`."""
        if mode not in ("r", "rt", "tr", "rb", "br"):
            raise io.UnsupportedOperation(f"images are only read, not opened with {mode!r}")
        entry = self.stat(path)
        if entry.kind == "directory":
            raise IsADirectoryError(21, "Is a directory", path)
        raw = ImageFile(entry, path)
        if "b" in mode:
            return raw if buffering == 0 else io.BufferedReader(raw, 1 << 16 if buffering < 2 else buffering)
        return io.TextIOWrapper(io.BufferedReader(raw, 1 << 16), **text)
