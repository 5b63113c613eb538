//! Scans the contents of a tree (the source of an image, an extraction, a mount), and compares two scans.

use crate::watchdog::{RequestGuard, RequestKind, RequestWatch};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs::{self, File};
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Longest file that is read as a whole. Longer files are mostly holes, and are read at some offsets only.
const WHOLE_BYTES: u64 = 64 << 20;
/// Bytes that are read at once.
const READ: u64 = 1 << 20;
/// Bounds of the walk, because a directory of a damaged image may contain itself.
const MOST_ENTRIES: usize = 20_000;
const MOST_LEVELS: usize = 400;
/// Longest path that system calls accept.
const PATH_MAX: usize = 4000;

/// The metadata of a file and a digest of its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Type and permissions.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Number of links; 0 for a directory, because file systems count differently.
    pub nlink: u64,
    /// Seconds and nanoseconds of the last change.
    pub mtime: Option<(i64, i64)>,
    /// Bytes; 0 for a directory.
    pub size: u64,
    /// Device number of a device.
    pub rdev: u64,
    /// Extended attributes, or the error of reading them.
    pub xattrs: Result<BTreeMap<Vec<u8>, Vec<u8>>, i32>,
    /// A digest of the contents, or of the target of a symbolic link; or the error of reading it.
    pub contents: Result<u64, i32>,
    /// The first of the names of the same inode.
    pub first: Vec<u8>,
}

/// A tree: entries by their path below its root, which is the empty path.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    /// Entries that could be read.
    pub entries: BTreeMap<Vec<u8>, Entry>,
    /// Path and error of entries that could not be read.
    pub errors: Vec<(Vec<u8>, i32)>,
    /// Whether the walk stopped at a bound.
    pub is_cut: bool,
}

/// The watch and the slot in which a reader notes its requests; `None` if the file system is not tested.
#[derive(Clone, Copy)]
pub struct RequestSlot<'a>(pub Option<(&'a RequestWatch, usize)>);

impl<'a> RequestSlot<'a> {
    /// Notes the beginning of a request.
    pub fn begin(self, offset: u64, len_bytes: u64) -> Option<RequestGuard<'a>> {
        self.0.map(|(watch, thread)| watch.begin(thread, RequestKind::Read, offset, len_bytes))
    }
}

/// Walks a tree and reads everything in it.
pub fn scan(root: &Path, slot: RequestSlot<'_>) -> Scan {
    let mut scan = Scan::default();
    let mut firsts: BTreeMap<(u64, u64), Vec<u8>> = BTreeMap::new();
    let mut todo: Vec<(Vec<u8>, usize)> = vec![(Vec::new(), 0)];
    while let Some((path, level)) = todo.pop() {
        if scan.entries.len() >= MOST_ENTRIES || level > MOST_LEVELS || path.len() > PATH_MAX - 200 {
            scan.is_cut = true;
            continue;
        }
        let at = root.join(OsStr::from_bytes(&path));
        let is_dir = match read_entry(&at, slot) {
            Ok((mut entry, id)) => {
                let is_dir = entry.mode & 0o170_000 == 0o040_000;
                if !is_dir {
                    entry.first = firsts.entry(id).or_insert_with(|| path.clone()).clone();
                }
                scan.entries.insert(path.clone(), entry);
                is_dir
            }
            Err(error) => {
                scan.errors.push((path.clone(), error));
                false
            }
        };
        if is_dir {
            match names(&at, slot) {
                Ok(mut names) => {
                    // Reverse order, because the stack is popped from its end.
                    names.sort_by(|a, b| b.cmp(a));
                    let below = |name: Vec<u8>| match path.is_empty() {
                        true => name,
                        false => [&path[..], b"/", &name].concat(),
                    };
                    todo.extend(names.into_iter().map(|name| (below(name), level + 1)));
                }
                Err(error) => scan.errors.push((path, error)),
            }
        }
    }
    scan
}

fn names(at: &Path, slot: RequestSlot<'_>) -> Result<Vec<Vec<u8>>, i32> {
    let _request = slot.begin(0, 0);
    let mut names = Vec::new();
    for entry in fs::read_dir(at).map_err(errno)? {
        names.push(entry.map_err(errno)?.file_name().as_bytes().to_vec());
        if names.len() > MOST_ENTRIES {
            break;
        }
    }
    Ok(names)
}

fn errno(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(-1)
}

/// Reads the metadata and contents of one file. Also returns device and inode number.
pub fn read_entry(at: &Path, slot: RequestSlot<'_>) -> Result<(Entry, (u64, u64)), i32> {
    let request = slot.begin(0, 0);
    let meta = fs::symlink_metadata(at).map_err(errno)?;
    let xattrs = xattrs(at).map_err(Errno::raw_os_error);
    let kind = meta.file_type();
    let target = if kind.is_symlink() { Some(fs::read_link(at).map_err(errno)) } else { None };
    drop(request);
    let contents = match target {
        Some(target) => target.map(|target| {
            let mut hasher = DefaultHasher::new();
            hasher.write(target.as_os_str().as_bytes());
            hasher.finish()
        }),
        None if kind.is_file() => digest(at, meta.len(), slot),
        None => Ok(0),
    };
    let is_dir = kind.is_dir();
    let entry = Entry {
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        nlink: if is_dir { 0 } else { meta.nlink() },
        mtime: Some((meta.mtime(), meta.mtime_nsec())),
        size: if kind.is_file() || kind.is_symlink() { meta.len() } else { 0 },
        rdev: meta.rdev(),
        xattrs,
        contents,
        first: Vec::new(),
    };
    Ok((entry, (meta.dev(), meta.ino())))
}

fn xattrs(at: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Errno> {
    let mut list = vec![0; 65_536];
    let len = match rustix::fs::llistxattr(at, &mut list[..]) {
        Err(Errno::NOTSUP) => 0,
        other => other?,
    };
    let mut value = vec![0; 65_536];
    let mut found = BTreeMap::new();
    for name in list[..len].split(|b| *b == 0).filter(|name| !name.is_empty()) {
        let len = rustix::fs::lgetxattr(at, OsStr::from_bytes(name), &mut value[..])?;
        found.insert(name.to_vec(), value[..len].to_vec());
    }
    Ok(found)
}

fn digest(at: &Path, len: u64, slot: RequestSlot<'_>) -> Result<u64, i32> {
    let file = {
        let _request = slot.begin(0, 0);
        File::open(at).map_err(errno)?
    };
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; READ.min(len) as usize];
    for offset in offsets_to_read(len) {
        let wanted = READ.min(len - offset) as usize;
        let _request = slot.begin(offset, wanted as u64);
        file.read_exact_at(&mut buffer[..wanted], offset).map_err(errno)?;
        hasher.write(&buffer[..wanted]);
    }
    Ok(hasher.finish())
}

/// Offsets at which a file of this length is read.
fn offsets_to_read(len: u64) -> Vec<u64> {
    match len <= WHOLE_BYTES {
        true => (0..len).step_by(READ as usize).collect(),
        false => vec![0, READ, len / 3, len / 2, len - READ],
    }
}

/// Describes the differences between the expected tree and the one found; `None` if there are none.
pub fn difference(expected: &Scan, found: &Scan) -> Option<String> {
    let mut text = String::new();
    let mut count = 0;
    let mut report = |path: &[u8], difference: String| {
        count += 1;
        if count <= 5 {
            // Writing to a string does not fail.
            let _ = writeln!(text, "/{}: {difference}", path.escape_ascii());
        }
    };
    for (path, entry) in &expected.entries {
        match found.entries.get(path) {
            None => {
                let error = found.errors.iter().find(|(p, _)| p == path).map(|(_, error)| *error);
                report(path, format!("is not there ({error:?})"));
            }
            Some(other) => {
                if let Some(difference) = field_difference(entry, other) {
                    report(path, difference);
                }
            }
        }
    }
    for path in found.entries.keys().filter(|path| !expected.entries.contains_key(*path)) {
        report(path, "should not be there".into());
    }
    for (path, error) in &found.errors {
        report(path, format!("fails with {error}"));
    }
    (count > 0).then(|| format!("{count} differences:\n{text}"))
}

/// Describes the fields that differ between two entries; `None` if there are none.
pub fn field_difference(expected: &Entry, found: &Entry) -> Option<String> {
    let mut text = String::new();
    let mut compare = |name: &str, a: &dyn std::fmt::Debug, b: &dyn std::fmt::Debug| {
        let (a, b) = (format!("{a:?}"), format!("{b:?}"));
        if a != b {
            let _ = write!(text, "{name} is {b:.300} and should be {a:.300}; ");
        }
    };
    compare("mode", &format!("{:o}", expected.mode), &format!("{:o}", found.mode));
    compare("owner", &expected.owner, &found.owner);
    compare("number of names", &expected.nlink, &found.nlink);
    if expected.mtime.is_some() && found.mtime.is_some() {
        compare("mtime", &expected.mtime, &found.mtime);
    }
    compare("size", &expected.size, &found.size);
    compare("device", &expected.rdev, &found.rdev);
    compare("contents", &expected.contents, &found.contents);
    compare("first name", &escaped(&expected.first), &escaped(&found.first));
    if expected.xattrs != found.xattrs {
        compare("attributes", &xattr_texts(expected), &xattr_texts(found));
    }
    (!text.is_empty()).then_some(text)
}

fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn xattr_texts(entry: &Entry) -> Result<Vec<String>, i32> {
    let xattrs = entry.xattrs.as_ref().map_err(|error| *error)?;
    Ok(xattrs.iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_difference_names_every_change() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let write = |byte: u8| {
            fs::write(at("f"), [vec![7; 3 << 20], vec![byte]].concat()).unwrap();
            File::options().write(true).open(at("f")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
            let root = File::open(dir.path()).unwrap();
            root.set_modified(std::time::UNIX_EPOCH).unwrap();
        };
        let now = || scan(dir.path(), RequestSlot(None));
        write(1);
        fs::hard_link(at("f"), at("g")).unwrap();
        std::os::unix::fs::symlink("f", at("s")).unwrap();
        write(1);
        let before = now();
        assert_eq!(difference(&before, &now()), None);
        assert_eq!(before.entries[&b"g"[..]].first, b"f");
        let says = |what: &str| {
            let text = difference(&before, &now()).unwrap();
            assert!(text.contains(what), "{text}");
        };
        write(2);
        says("contents");
        write(1);
        fs::set_permissions(at("f"), fs::Permissions::from_mode(0o4711)).unwrap();
        says("mode");
        fs::set_permissions(at("f"), fs::Permissions::from_mode(0o644)).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1);
        File::options().write(true).open(at("f")).unwrap().set_modified(time).unwrap();
        says("mtime");
        write(1);
        let flags = rustix::fs::XattrFlags::empty();
        if rustix::fs::lsetxattr(at("f"), "user.x", b"", flags).is_ok() {
            says("attributes");
            rustix::fs::lremovexattr(at("f"), "user.x").unwrap();
        }
        assert_eq!(difference(&before, &now()), None);
        fs::remove_file(at("s")).unwrap();
        std::os::unix::fs::symlink("g", at("s")).unwrap();
        says("/s: ");
        fs::remove_file(at("g")).unwrap();
        says("/g: is not there");
        says("number of names");
        fs::write(at("h"), "").unwrap();
        says("should not be there");
    }
}
