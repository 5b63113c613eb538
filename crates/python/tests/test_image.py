"""Images: reading, walking, and pandas through fsspec."""

import io
import json
import os
import subprocess
import sys
import tarfile

import pytest
from conftest import FIXTURES

import pagefold


def expected_files(image):
    """Returns the contents of all regular files, as the command line of erofs-utils or the fixture's tar has them."""
    with pagefold.Image(image) as it:
        return {
            f"{folder.rstrip('/')}/{name}": it.stat(f"{folder.rstrip('/')}/{name}", follow_symlinks=False)
            for folder, _, names in it.walk()
            for name in names
        }


def test_reading_a_file_in_parts_equals_reading_it_whole(image):
    with pagefold.Image(image, memory="8M") as it:
        path = "/usr/share/doc/app/README"
        whole = it.read(path)
        assert len(whole) == it.stat(path).size > 100_000
        assert it.read(path, 1000, 5) == whole[1000:1005]
        assert it.read(path, len(whole) - 3, 100) == whole[-3:] and it.read(path, len(whole) + 5) == b""
        buffer = bytearray(5000)
        assert it.stat(path).readinto(buffer, 4000) == 5000 and buffer == whole[4000:9000]
        assert it.stat(path).readinto(buffer, len(whole) - 10) == 10 and buffer[:10] == whole[-10:]
        with it.open(path) as file:
            assert (file.read(10), file.tell(), file.seek(-4, io.SEEK_END)) == (whole[:10], 10, len(whole) - 4)
            assert file.read() == whole[-4:] and file.read() == b""
            assert file.seek(50) == 50 and file.peek(1) and file.read(7) == whole[50:57]
        with it.open(path, "r", encoding="utf-8") as file:
            assert list(file) == list(io.StringIO(whole.decode()))
        with it.open(path, buffering=0) as file:
            assert file.readall() == whole
            with pytest.raises(ValueError):
                file.seek(-1)
        with pytest.raises(ValueError):
            file.read()
        stats = it.stats()
        assert stats["memory_peak"] <= 8 << 20 and stats["asked"] > len(whole)


def test_errors_are_those_of_files(image, tmp_path):
    with pagefold.Image(image) as it:
        for call in (it.read, it.stat, it.listdir, it.open):
            with pytest.raises(FileNotFoundError, match="none"):
                call("/usr/none")
        with pytest.raises(NotADirectoryError):
            it.listdir("/etc/os-release")
        with pytest.raises(NotADirectoryError):
            it.stat("/etc/os-release/x")
        for call in (it.read, it.open):
            with pytest.raises(IsADirectoryError):
                call("/usr")
        with pytest.raises(io.UnsupportedOperation):
            it.open("/etc/os-release", "w")
        assert it.exists("/etc") and not it.exists("/none") and not it.exists("/etc/os-release/x")
    with pytest.raises(FileNotFoundError):
        pagefold.Image(tmp_path / "none")
    (tmp_path / "text").write_bytes(b"no image" * 1000)
    with pytest.raises(pagefold.ImageError, match="EROFS"):
        pagefold.Image(tmp_path / "text")
    with pytest.raises(ValueError, match="memory="):
        pagefold.Image(image, memory="4K")
    with pytest.raises(ValueError, match="devices="):
        pagefold.Image(image, devices=[image])


def test_walking_visits_what_scandir_lists(image):
    with pagefold.Image(image) as it:
        seen = list(it.walk())
        assert seen[0][0] == "/" and set(seen[0][1] + seen[0][2]) == set(it.listdir())
        assert "." not in it.listdir() and ".." not in it.listdir()
        for folder, folders, files in seen:
            kinds = {entry.name: entry.kind for entry in it.scandir(folder)}
            assert set(folders) == {name for name, kind in kinds.items() if kind == "directory"}
            assert set(files) == set(kinds) - set(folders)
        top = next(iter(it.walk("/usr")))
        assert top[0] == "/usr"
        pruned = it.walk()
        next(pruned)[1].clear()
        assert list(pruned) == []


def test_walking_goes_deeper_than_the_interpreter_recurses(tmp_path):
    program = os.environ.get("PAGEFOLD_PROGRAM", str(FIXTURES.parents[3] / "target/debug/pagefold"))
    if not os.access(program, os.X_OK):
        pytest.skip("the program, which builds the image, is not built")
    # An image has 1024 levels at most, so the interpreter's limit is lowered below them.
    depth, limit = 1000, 500
    with tarfile.open(tmp_path / "deep.tar", "w") as tar:
        for folders in range(1, depth + 1):
            folder = tarfile.TarInfo("d/" * folders)
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
        tar.addfile(tarfile.TarInfo("d/" * depth + "file"))
    build = [program, "image", "build", str(tmp_path / "deep.tar"), str(tmp_path / "deep.erofs")]
    built = subprocess.run(build, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    usual = sys.getrecursionlimit()
    with pagefold.Image(tmp_path / "deep.erofs") as it:
        sys.setrecursionlimit(limit)
        try:
            seen = list(it.walk())
        finally:
            sys.setrecursionlimit(usual)
    assert len(seen) == depth + 1 and seen[0] == ("/", ["d"], [])
    assert seen[-1] == ("/" + "/".join("d" * depth), [], ["file"])


def test_links_lead_to_files_of_the_image(image):
    with pagefold.Image(image) as it:
        assert it.stat("/bin/hello").inode == it.stat("/usr/bin/hello").inode
        link = it.stat("/bin/hello", follow_symlinks=False)
        assert link.kind == "symlink" and link.readlink() == it.readlink("/bin/hello") and link.readlink().endswith("bin/hello")
        assert "symlink" in repr(link) and link.mode & 0o170000 == 0o120000


def test_contents_equal_those_of_another_reader(image, tmp_path):
    """`fsck.erofs --extract` reads the same image; without it, the program's own tar is the oracle."""
    program = os.environ.get("PAGEFOLD_PROGRAM", str(FIXTURES.parents[3] / "target/debug/pagefold"))
    if not os.access(program, os.X_OK):
        pytest.skip("the program is not built")
    archive = subprocess.run([program, "image", "tar", str(image)], capture_output=True)
    if archive.returncode:
        pytest.skip(archive.stderr.decode())
    with pagefold.Image(image) as it, tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        members = [member for member in tar if member.isfile()]
        assert len(members) >= 5
        for member in members:
            path = "/" + member.name.removeprefix("./")
            entry = it.stat(path)
            assert it.read(path) == tar.extractfile(member).read(), path
            assert (entry.mode & 0o7777, entry.uid, entry.mtime_ns // 10**9) == (member.mode, member.uid, int(member.mtime))


def test_a_closed_image_reads_open_files(image):
    it = pagefold.Image(image)
    file = it.open("/etc/os-release")
    it.close()
    it.close()
    assert it.closed and "closed" in repr(it) and file.read().startswith(b"NAME=")
    for use in (it.listdir, it.stats, lambda: it.stat("/")):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_threads_read_one_image(image):
    from concurrent.futures import ThreadPoolExecutor

    with pagefold.Image(image, memory="8M") as it, ThreadPoolExecutor(8) as threads:
        paths = [path for path, entry in expected_files(image).items() if entry.kind == "file"] * 4
        assert all(len(data) == it.stat(path).size for path, data in zip(paths, threads.map(it.read, paths)))


def test_fsspec_reads_images(image):
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open(f"pagefold://{image}#/etc/os-release") as file:
        assert file.read().startswith(b"NAME=")
    fs = fsspec.filesystem("pagefold", image=str(image))
    assert fs.exists("/etc") and fs.isdir("/etc") and fs.isfile("etc/os-release") and not fs.exists("/none")
    with pagefold.Image(image) as it:
        assert sorted(fs.ls("/", detail=False)) == sorted("/" + name for name in it.listdir())
        found = {path for path, entry in expected_files(image).items() if entry.kind == "file"}
        assert found <= set(fs.find("/"))
        data = it.read("/usr/share/doc/app/README")
    assert fs.cat_file("/usr/share/doc/app/README", 10, -20) == data[10:-20] == fs.cat("/usr/share/doc/app/README")[10:-20]
    assert fs.cat_file("/usr/share/doc/app/README", 20, 10) == b"" and fs.size("/etc/os-release") > 0
    assert fs.info("/bin/hello")["type"] == "file" and fs.modified("/etc/os-release").year > 1900
    assert fs.glob("/etc/os-*") == ["/etc/os-release"]
    json.dumps(fs.info("/etc/os-release"))
    with pytest.raises(ValueError, match="image"):
        fsspec.filesystem("pagefold", skip_instance_cache=True)
    with pytest.raises(io.UnsupportedOperation):
        fs.open("/etc/os-release", "wb")


def test_pandas_and_pyarrow_read_images(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("fsspec")
    program = os.environ.get("PAGEFOLD_PROGRAM", str(FIXTURES.parents[3] / "target/debug/pagefold"))
    if not os.access(program, os.X_OK):
        pytest.skip("the program, which builds the image, is not built")
    frame = pandas.DataFrame({"n": range(50_000), "square": [n * n for n in range(50_000)]})
    folder = tmp_path / "files"
    folder.mkdir()
    frame.to_csv(folder / "table.csv", index=False)
    build = [program, "image", "build", str(folder), str(tmp_path / "data.erofs")]
    built = subprocess.run(build, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(built.stderr)
    read = pandas.read_csv(f"pagefold://{tmp_path}/data.erofs#/table.csv")
    assert read.equals(frame)
    options = {"image": str(tmp_path / "data.erofs")}
    assert pandas.read_csv("pagefold:///table.csv", storage_options=options).equals(frame)
    csv = pytest.importorskip("pyarrow.csv")
    with pagefold.Image(tmp_path / "data.erofs") as it, it.open("/table.csv") as file:
        assert csv.read_csv(file).to_pandas().equals(frame)


def test_a_forked_child_reads_an_image_of_its_parent(image):
    """A child has none of the image's threads, and must neither wait for them nor join them."""
    import gc
    import multiprocessing

    it = pagefold.Image(image)
    file, data = it.open("/usr/share/doc/app/README"), it.read("/usr/share/doc/app/README")

    def child():
        nonlocal it, file
        assert it.read("/usr/share/doc/app/README") == data and file.read() == data
        del it, file
        gc.collect()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0 and file.read() == data


def test_a_forked_child_reads_the_image_of_its_parent_or_none(image, tmp_path, monkeypatch):
    """A child opens the image again: in another folder too, and not another image that has taken the name."""
    import multiprocessing
    import shutil

    shutil.copy(image, tmp_path / "data.erofs")
    monkeypatch.chdir(tmp_path)
    it = pagefold.Image("data.erofs")
    entry, data = it.stat("/etc/os-release"), it.read("/etc/os-release")

    def child(is_replaced):
        os.chdir("/")
        if is_replaced:
            shutil.copy(image, tmp_path / "new")
            os.rename(tmp_path / "new", tmp_path / "data.erofs")
            for read in (entry.read, lambda: it.read("/etc/os-release")):
                with pytest.raises(pagefold.ImageError, match="was replaced"):
                    read()
        else:
            assert entry.read() == data == it.read("/etc/os-release")

    for is_replaced in (False, True):
        process = multiprocessing.get_context("fork").Process(target=child, args=(is_replaced,))
        process.start()
        process.join(60)
        assert process.exitcode == 0, is_replaced
