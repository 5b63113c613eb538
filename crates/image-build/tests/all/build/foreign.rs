//! Images of the builder, read by programs of erofs-utils that decode every algorithm: version 1.9 and later.
//!
//! The programs are those in `bin` of the folder that `PAGEFOLD_EROFS_UTILS` names (`tests/guest/erofs-utils.sh` makes
//! one), or else those in `PATH`.

use crate::built::{Way, build_at, tree, ways};
use crate::oracles::kernel_walk;
use crate::support::Entry;
use crate::support::walk::{assert_same, walk};
use pagefold_image::{Image, Options};
use pagefold_testkit::skipped;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Once};
use std::time::{Duration, Instant};

/// A daemon that has not mounted an image after this time hangs.
const MOUNT_PATIENCE: Duration = Duration::from_secs(60);

/// The path of a program, or the reason that the test cannot use it. All are of the version that `fsck.erofs` prints;
/// `erofsfuse` prints none.
fn program(name: &str) -> Result<PathBuf, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("devices and owners need root".into());
    }
    let folder = std::env::var_os("PAGEFOLD_EROFS_UTILS").map(|folder| Path::new(&folder).join("bin"));
    let path = |name: &str| folder.as_ref().map_or(name.into(), |folder| folder.join(name));
    let run = |path: PathBuf| {
        let run = Command::new(&path).arg("-V").output().map_err(|e| format!("{}: {e}", path.display()))?;
        Ok::<_, String>(
            (String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr)).into_owned(),
        )
    };
    run(path(name))?;
    let text = run(path("fsck.erofs"))?;
    match version(&text) {
        Some(version) if version >= (1, 9) => Ok(path(name)),
        _ => Err(format!("erofs-utils are older than 1.9: {}", text.lines().next().unwrap_or(""))),
    }
}

/// The first version in a text.
fn version(text: &str) -> Option<(u32, u32)> {
    text.split_whitespace().find_map(|word| {
        let mut numbers = word.split('.').map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    })
}

/// A folder on the file system of the build: that of temporary files may be a tmpfs without attributes.
fn work() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A list without the links of directories, which not every file system counts.
fn without_directory_links(mut entries: Vec<Entry>) -> Vec<Entry> {
    let directories = entries.iter_mut().filter(|entry| entry.mode & 0o170_000 == 0o040_000);
    directories.for_each(|entry| entry.nlink = 0);
    entries
}

/// Compares a directory with the image, times included; their nanoseconds only if the program keeps them.
fn compare(what: &str, at: &Path, image: &Image, has_nanoseconds: bool) {
    let (found, wanted) = (kernel_walk(at), walk(image, 1 << 20).unwrap());
    assert_same(what, &without_directory_links(found), &without_directory_links(wanted));
    for path in ["", "new", "old", "text", "symlink", "deep", "null"] {
        let found = at.join(path).symlink_metadata().unwrap();
        let wanted = image.find(path.as_bytes()).unwrap().inode().mtime;
        let found = (found.mtime(), found.mtime_nsec());
        let nanoseconds = if has_nanoseconds { i64::from(wanted.nanoseconds) } else { 0 };
        assert_eq!(found, (wanted.seconds, nanoseconds), "{what}: time of '{path}'");
    }
}

#[test]
fn fsck_of_erofs_utils_extracts_every_image() {
    let fsck = match program("fsck.erofs") {
        Ok(fsck) => fsck,
        Err(why) => return skipped!("fsck_of_erofs_utils_extracts_every_image: {why}"),
    };
    let (work, tree) = (work(), tree());
    // fsck.erofs 1.9.4 cuts files before a hole at their end that is in indexed chunks, also in images of mkfs.erofs. The kernel
    // and erofsfuse read them in full.
    let has_indexed_chunks = |way: &Way| way.options.form.chunks.is_some_and(|chunks| chunks.indexed);
    for way in ways().into_iter().filter(|way| !has_indexed_chunks(way)) {
        let (file, out) = (work.path().join("image"), work.path().join("out"));
        build_at(&file, &tree, &way.options);
        let run = Command::new(&fsck).arg("--xattrs").arg(extract_to(&out)).arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && !text.contains("<E>"), "{}: {text}", way.name);
        compare(&way.name, &out, &Image::open_file(&file, Options::default()).unwrap(), true);
        fs::remove_dir_all(&out).unwrap();
    }
}

/// Compares an image of a generated tree with what fsck.erofs extracts and with what the kernel's mount shows, and has the kernel
/// map each file, where these are available.
pub fn assert_others_agree(what: &str, file: &Path, image: &Image, has_fragments: bool) {
    static FSCK: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| program("fsck.erofs"));
    static SKIPPED: Once = Once::new();
    let skip =
        |why: &str| SKIPPED.call_once(|| skipped!("images of generated trees in other readers: {why}"));
    if !rustix::process::geteuid().is_root() {
        return skip("devices and owners need root");
    }
    let wanted = without_directory_links(walk(image, 1 << 20).unwrap());
    let work = work();
    let out = work.path().join("out");
    match &*FSCK {
        Ok(fsck) => {
            // fsck.erofs 1.9.4 takes an empty value of an attribute for a failure.
            let has_empty = wanted.iter().any(|entry| entry.xattrs.iter().any(|xattr| xattr.1.is_empty()));
            let mut extract = Command::new(fsck);
            extract.arg(if has_empty { "--no-xattrs" } else { "--xattrs" });
            let run = extract.arg(extract_to(&out)).arg(file).output().unwrap();
            let text = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
            assert!(run.status.success() && !text.contains("<E>"), "{what}: {text}");
            let mut wanted = wanted.clone();
            if has_empty {
                wanted.iter_mut().for_each(|entry| entry.xattrs.clear());
            }
            assert_same(what, &without_directory_links(kernel_walk(&out)), &wanted);
        }
        Err(why) => skip(why),
    }
    let at = work.path().join("at");
    fs::create_dir(&at).unwrap();
    let mounted = Command::new("mount").args(["-t", "erofs", "-o", "ro,loop"]).args([file, &at]).output();
    if !mounted.is_ok_and(|run| run.status.success()) {
        return skip(&format!("the kernel does not mount {what}"));
    }
    let found = without_directory_links(kernel_walk(&at));
    let unmapped = wanted.iter().filter(|entry| entry.mode & 0o170_000 == 0o100_000);
    let unmapped = unmapped
        .map(|entry| at.join(entry.path.trim_start_matches("/")))
        .filter_map(|path| wrong_mapping(&path, has_fragments))
        .collect::<Vec<_>>();
    assert!(Command::new("umount").arg(&at).status().unwrap().success());
    assert_same(what, &found, &wanted);
    assert!(unmapped.is_empty(), "{what}: {unmapped:?}");
}

/// Has the kernel tell the extents of a file, which follows the distances of the index then, and returns them if they do not begin
/// with the file, ascend without a gap, and end with it. The kernel shows a fragment as a hole.
fn wrong_mapping(path: &Path, has_fragments: bool) -> Option<String> {
    let Ok(run) = Command::new("filefrag").arg("-v").arg(path).output() else { return None };
    let text = String::from_utf8_lossy(&run.stdout);
    // A line is "   0:        0..      12:    34..    46:     13:    encoded,eof".
    let extents = text.lines().filter_map(|line| {
        let (number, rest) = line.split_once(':')?;
        number.trim().parse::<u32>().ok()?;
        let (first, last) = rest.split_once(':')?.0.split_once("..")?;
        // An end that is stored with the metadata is shown in bytes.
        let unit = if line.contains("not_aligned") { 4096 } else { 1 };
        Some((first.trim().parse::<u64>().ok()? / unit, last.trim().parse::<u64>().ok()? / unit))
    });
    let blocks = path.metadata().unwrap().len().div_ceil(4096);
    let mut next = 0;
    for (first, last) in extents {
        if first > next + 1 && !has_fragments || last < first || last + 1 < next {
            return Some(text.into());
        }
        next = next.max(last + 1);
    }
    // Extents begin and end at any byte, and both are rounded down.
    let is_right = run.status.success() && next <= blocks && (has_fragments || next + 1 >= blocks);
    (!is_right).then(|| text.into())
}

fn extract_to(out: &Path) -> String {
    format!("--extract={}", out.display())
}

/// An image that erofsfuse has mounted. Dropping it unmounts.
struct FuseMount {
    at: PathBuf,
    daemon: Child,
}

impl FuseMount {
    fn new(erofsfuse: &Path, file: &Path, at: PathBuf) -> Self {
        let mut command = Command::new(erofsfuse);
        command.arg("-f").args([file, &at]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let before = at.metadata().unwrap().dev();
        let mut mount = FuseMount { daemon: command.spawn().unwrap(), at };
        let deadline = Instant::now() + MOUNT_PATIENCE;
        while mount.at.metadata().unwrap().dev() == before {
            assert!(mount.daemon.try_wait().unwrap().is_none(), "erofsfuse did not mount {}", file.display());
            assert!(Instant::now() < deadline, "erofsfuse hangs");
            std::thread::sleep(Duration::from_millis(5));
        }
        mount
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        // It ends when it is unmounted, and is killed if it was not mounted.
        let unmounted = Command::new("umount").arg(&self.at).output().is_ok_and(|run| run.status.success());
        if !unmounted {
            _ = self.daemon.kill();
        }
        _ = self.daemon.wait();
    }
}

#[test]
fn erofsfuse_reads_every_image() {
    let erofsfuse = match program("erofsfuse") {
        Ok(erofsfuse) if Path::new("/dev/fuse").exists() => erofsfuse,
        Ok(_) => return skipped!("erofsfuse_reads_every_image: there is no /dev/fuse"),
        Err(why) => return skipped!("erofsfuse_reads_every_image: {why}"),
    };
    let (work, tree) = (work(), tree());
    let (file, at) = (work.path().join("image"), work.path().join("at"));
    fs::create_dir(&at).unwrap();
    for way in ways() {
        build_at(&file, &tree, &way.options);
        let mount = FuseMount::new(&erofsfuse, &file, at.clone());
        // erofsfuse 1.9.4 shows whole seconds.
        compare(&way.name, &mount.at, &Image::open_file(&file, Options::default()).unwrap(), false);
    }
}
