//! Images of the builder, read by programs of erofs-utils that decode every algorithm: version 1.9 and later.
//!
//! The programs are those in `bin` of the folder that `PAGEFOLD_EROFS_UTILS` names (`tests/guest/erofs-utils.sh` makes
//! one), or else those in `PATH`.

use crate::oracles::kernel_walk;
use crate::support::Entry;
use crate::support::built::{build_at, tree, ways};
use crate::support::walk::{assert_same, walk};
use pagefold_image::{Image, Options};
use pagefold_testkit::skipped;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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
    for way in ways() {
        let (file, out) = (work.path().join("image"), work.path().join("out"));
        build_at(&file, &tree, &way.options);
        let run = Command::new(&fsck).arg("--xattrs").arg(extract_to(&out)).arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && !text.contains("<E>"), "{}: {text}", way.name);
        compare(&way.name, &out, &Image::open_file(&file, Options::default()).unwrap(), true);
        fs::remove_dir_all(&out).unwrap();
    }
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
