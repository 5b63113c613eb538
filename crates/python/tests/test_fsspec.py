"""File systems of fsspec follow the file at the path of an image, not its name."""

import gc
import os
import pickle

import pytest

import pagefold

fsspec = pytest.importorskip("fsspec")


def put(image, path, name: bytes):
    """Puts a copy of the test image, whose /etc/os-release begins with a name of four letters, in the place of a file."""
    data = bytearray(image.read_bytes().replace(b"NAME=", name + b"="))
    data[1024 + 8] &= 0xFE  # no checksum of the superblock
    (path.parent / "new").write_bytes(data)
    os.rename(path.parent / "new", path)


def name_at(url: str) -> bytes:
    with fsspec.open(url) as file:
        return file.read(4)


def descriptors(path) -> int:
    """Returns how many descriptors of this process lead to a path that is there, or was."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            pass
    return sum(link.startswith(str(path)) for link in links)


def test_a_replaced_image_is_read_anew_and_the_old_one_is_closed(image, tmp_path):
    path = tmp_path / "data.erofs"
    put(image, path, b"OLD1")
    assert name_at(f"pagefold://{path}#/etc/os-release") == b"OLD1"
    old = fsspec.filesystem("pagefold", image=str(path))
    assert old is fsspec.filesystem("pagefold", image=str(path)), "the same file has one file system"
    put(image, path, b"NEW2")
    assert name_at(f"pagefold://{path}#/etc/os-release") == b"NEW2"
    new = fsspec.filesystem("pagefold", image=path)
    assert old != new and old.cat("/etc/os-release")[:4] == b"OLD1"
    del old
    gc.collect()
    assert descriptors(path) == 1
    # Overwritten in place, with the time that it had.
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes().replace(b"NEW2=", b"NEW3="))
    os.utime(path, ns=times)
    assert name_at(f"pagefold://{path}#/etc/os-release") == b"NEW3"


def test_a_deleted_image_is_not_kept_open(image, tmp_path):
    paths = [tmp_path / "deleted.erofs", tmp_path / "other.erofs"]
    for path in paths:
        put(image, path, b"SOME")
        name_at(f"pagefold://{path}#/etc/os-release")
    assert descriptors(paths[0]) == 1
    paths[0].unlink()
    name_at(f"pagefold://{paths[1]}#/etc/os-release")
    gc.collect()
    assert descriptors(paths[0]) == 0
    with pytest.raises(FileNotFoundError):
        name_at(f"pagefold://{paths[0]}#/etc/os-release")


def test_a_relative_path_is_that_of_the_folder_in_which_it_was_given(image, tmp_path, monkeypatch):
    for folder, name in (("one", b"ONE1"), ("two", b"TWO2")):
        (tmp_path / folder).mkdir()
        put(image, tmp_path / folder / "data.erofs", name)
    monkeypatch.chdir(tmp_path / "one")
    url = "pagefold://data.erofs#/etc/os-release"
    fs = fsspec.filesystem("pagefold", image="data.erofs")
    assert name_at(url) == b"ONE1"
    monkeypatch.chdir(tmp_path / "two")
    assert name_at(url) == b"TWO2"
    # Another process gets the options, and may have another current folder.
    assert pickle.loads(pickle.dumps(fs)).cat("/etc/os-release")[:4] == b"ONE1"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        name_at(url)


def test_an_open_image_is_not_taken_for_another_of_its_path(image):
    with pagefold.Image(image) as first:
        fsspec.filesystem("pagefold", image=first).ls("/")
    with pagefold.Image(image) as second:
        fs = fsspec.filesystem("pagefold", image=second)
        assert fs.image is second and fs.ls("/")


def test_a_path_of_the_configuration_is_used(image, tmp_path, monkeypatch):
    monkeypatch.chdir(image.parent)
    monkeypatch.setitem(fsspec.config.conf, "pagefold", {"image": image.name, "memory": "32M"})
    fs = fsspec.filesystem("pagefold")
    monkeypatch.chdir(tmp_path)
    assert fs.storage_options == {"image": str(image), "memory": "32M"}
    assert fs._is_current() and fs.exists("/etc")
