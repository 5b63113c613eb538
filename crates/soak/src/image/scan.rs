//! What a tree holds, wherever it comes from: the source, an extraction, a mount. Two trees are compared by their scans.

use crate::load::watch::{UnderWay, Watch, What};
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

/// Files up to this length are read as a whole; of longer ones, which are mostly hole, some places are.
const WHOLE_BYTES: u64 = 64 << 20;
/// Bytes that are read at once.
const READ: u64 = 1 << 20;
/// A tree of a damaged image may contain itself; beyond this it is not walked.
const MOST_ENTRIES: usize = 20_000;
const MOST_LEVELS: usize = 400;
/// The longest path that system calls take.
const PATH_MAX: usize = 4000;

/// What is known of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Type and permissions.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Names; of a directory 0, because file systems count differently.
    pub nlink: u64,
    /// Seconds and nanoseconds of the last change.
    pub mtime: Option<(i64, i64)>,
    /// Bytes; of a directory 0.
    pub size: u64,
    /// Of a device, its number.
    pub rdev: u64,
    /// Attributes.
    pub xattrs: Result<BTreeMap<Vec<u8>, Vec<u8>>, i32>,
    /// A digest of the contents, or of the target of a symbolic link; or why it cannot be read.
    pub contents: Result<u64, i32>,
    /// The first of the names that lead to the same inode.
    pub first: Vec<u8>,
}

/// A tree: entries by their path below its root, which is the empty path.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    /// What could be looked at.
    pub entries: BTreeMap<Vec<u8>, Entry>,
    /// What could not: path and error.
    pub errors: Vec<(Vec<u8>, i32)>,
    /// Whether the walk was ended before it was through.
    pub is_cut: bool,
}

/// Where requests are noted, so that one that is not answered is noticed.
#[derive(Clone, Copy)]
pub struct Noted<'a>(pub Option<(&'a Watch, usize)>);

impl<'a> Noted<'a> {
    /// A request begins.
    pub fn begin(self, offset: u64, len_bytes: u64) -> Option<UnderWay<'a>> {
        self.0.map(|(watch, thread)| watch.begin(thread, What::Read, offset, len_bytes))
    }
}

/// Walks a tree and reads everything in it.
pub fn scan(root: &Path, noted: Noted<'_>) -> Scan {
    let mut scan = Scan::default();
    let mut firsts: BTreeMap<(u64, u64), Vec<u8>> = BTreeMap::new();
    let mut todo: Vec<(Vec<u8>, usize)> = vec![(Vec::new(), 0)];
    while let Some((path, level)) = todo.pop() {
        if scan.entries.len() >= MOST_ENTRIES || level > MOST_LEVELS || path.len() > PATH_MAX - 200 {
            scan.is_cut = true;
            continue;
        }
        let at = root.join(OsStr::from_bytes(&path));
        let is_dir = match look(&at, noted) {
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
            match names(&at, noted) {
                Ok(mut names) => {
                    // So that the first name is the first in order.
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

fn names(at: &Path, noted: Noted<'_>) -> Result<Vec<Vec<u8>>, i32> {
    let _request = noted.begin(0, 0);
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

/// Looks at one file and reads it. Returns what identifies its inode, too.
pub fn look(at: &Path, noted: Noted<'_>) -> Result<(Entry, (u64, u64)), i32> {
    let request = noted.begin(0, 0);
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
        None if kind.is_file() => digest(at, meta.len(), noted),
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

fn digest(at: &Path, len: u64, noted: Noted<'_>) -> Result<u64, i32> {
    let file = {
        let _request = noted.begin(0, 0);
        File::open(at).map_err(errno)?
    };
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; READ.min(len) as usize];
    for offset in places(len) {
        let wanted = READ.min(len - offset) as usize;
        let _request = noted.begin(offset, wanted as u64);
        file.read_exact_at(&mut buffer[..wanted], offset).map_err(errno)?;
        hasher.write(&buffer[..wanted]);
    }
    Ok(hasher.finish())
}

/// Where a file of this length is read.
fn places(len: u64) -> Vec<u64> {
    match len <= WHOLE_BYTES {
        true => (0..len).step_by(READ as usize).collect(),
        false => vec![0, READ, len / 3, len / 2, len - READ],
    }
}

/// What differs between two trees, `None` if nothing does. The first is what should be.
pub fn difference(expected: &Scan, found: &Scan) -> Option<String> {
    let mut text = String::new();
    let mut count = 0;
    let mut say = |path: &[u8], what: String| {
        count += 1;
        if count <= 5 {
            // Writing to a string does not fail.
            let _ = writeln!(text, "/{}: {what}", path.escape_ascii());
        }
    };
    for (path, entry) in &expected.entries {
        match found.entries.get(path) {
            None => {
                let error = found.errors.iter().find(|(p, _)| p == path).map(|(_, error)| *error);
                say(path, format!("is not there ({error:?})"));
            }
            Some(other) => {
                if let Some(what) = fields(entry, other) {
                    say(path, what);
                }
            }
        }
    }
    for path in found.entries.keys().filter(|path| !expected.entries.contains_key(*path)) {
        say(path, "should not be there".into());
    }
    for (path, error) in &found.errors {
        say(path, format!("fails with {error}"));
    }
    (count > 0).then(|| format!("{count} differences:\n{text}"))
}

/// The fields of two entries that differ.
pub fn fields(expected: &Entry, found: &Entry) -> Option<String> {
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
    compare("first name", &show(&expected.first), &show(&found.first));
    if expected.xattrs != found.xattrs {
        compare("attributes", &shown(expected), &shown(found));
    }
    (!text.is_empty()).then_some(text)
}

fn show(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn shown(entry: &Entry) -> Result<Vec<String>, i32> {
    let xattrs = entry.xattrs.as_ref().map_err(|error| *error)?;
    Ok(xattrs.iter().map(|(name, value)| format!("{}={}", show(name), show(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_change_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let write = |byte: u8| {
            fs::write(at("f"), [vec![7; 3 << 20], vec![byte]].concat()).unwrap();
            File::options().write(true).open(at("f")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
            let root = File::open(dir.path()).unwrap();
            root.set_modified(std::time::UNIX_EPOCH).unwrap();
        };
        let now = || scan(dir.path(), Noted(None));
        write(1);
        fs::hard_link(at("f"), at("g")).unwrap();
        std::os::unix::fs::symlink("f", at("s")).unwrap();
        write(1);
        let before = now();
        assert_eq!(difference(&before, &now()), None);
        assert_eq!(before.entries[&b"g"[..]].first, b"f");
        let says = |what: &str| {
            let said = difference(&before, &now()).unwrap();
            assert!(said.contains(what), "{said}");
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
