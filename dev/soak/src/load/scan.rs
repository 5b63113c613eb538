//! Scans the contents of a tree (the source of an image, an extraction, a mount), and compares two scans.

use crate::verdict::{Fault, require};
use crate::watchdog::{self, RequestKind};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io;
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

/// The visible properties of a file, as text by their names: type and permissions (`mode`), a digest of the contents or
/// the `error` of reading them, each attribute, and so on.
pub type Entry = BTreeMap<String, String>;

/// The type of regular files.
pub const REGULAR: &str = "10";
/// The type of symbolic links.
pub const SYMLINK: &str = "12";
/// The type of directories.
const DIRECTORY: &str = "04";

/// The type of a file: the first two digits of the mode.
pub fn kind(entry: &Entry) -> &str {
    entry.get("mode").and_then(|mode| mode.get(..2)).unwrap_or_default()
}

/// A tree: entries by their path below its root, which is the empty path.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    /// Entries that could be read.
    pub entries: BTreeMap<Vec<u8>, Entry>,
    /// Path and error of entries that could not be read.
    pub errors: BTreeMap<Vec<u8>, String>,
    /// Whether the walk stopped at a bound.
    pub is_cut: bool,
}

/// Walks a tree and reads everything in it.
pub fn scan(root: &Path) -> Scan {
    let mut scan = Scan::default();
    let mut firsts: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut todo: Vec<(Vec<u8>, usize)> = vec![(Vec::new(), 0)];
    while let Some((path, level)) = todo.pop() {
        if scan.entries.len() >= MOST_ENTRIES || level > MOST_LEVELS || path.len() > PATH_MAX - 200 {
            scan.is_cut = true;
            continue;
        }
        let at = root.join(OsStr::from_bytes(&path));
        let read = read_entry(&at).and_then(|(mut entry, inode)| {
            if kind(&entry) == DIRECTORY {
                let below =
                    |name: Vec<u8>| if path.is_empty() { name } else { [&path[..], b"/", &name].concat() };
                todo.extend(names(&at)?.into_iter().map(|name| (below(name), level + 1)));
            } else {
                let first = firsts.entry(inode).or_insert_with(|| path.clone());
                entry.insert("first name".into(), first.escape_ascii().to_string());
            }
            Ok(entry)
        });
        match read {
            Ok(entry) => drop(scan.entries.insert(path, entry)),
            Err(error) => drop(scan.errors.insert(path, error.to_string())),
        }
    }
    scan
}

/// The names in a directory, the last one first.
fn names(at: &Path) -> io::Result<Vec<Vec<u8>>> {
    let _request = watchdog::begin(RequestKind::Read, 0, 0);
    let entries = fs::read_dir(at)?.take(MOST_ENTRIES);
    let mut names =
        entries.map(|entry| Ok(entry?.file_name().as_bytes().to_vec())).collect::<io::Result<Vec<_>>>()?;
    names.sort_by(|a, b| b.cmp(a));
    Ok(names)
}

/// Reads the metadata and contents of one file. Also returns the inode number.
pub fn read_entry(at: &Path) -> io::Result<(Entry, u64)> {
    let request = watchdog::begin(RequestKind::Read, 0, 0);
    let meta = fs::symlink_metadata(at)?;
    let mut entry = Entry::new();
    let mut put = |name: &str, value: String| drop(entry.insert(name.into(), value));
    let kind = meta.file_type();
    put("mode", format!("{:06o}", meta.mode()));
    put("owner", format!("{} {}", meta.uid(), meta.gid()));
    put("mtime", format!("{} {}", meta.mtime(), meta.mtime_nsec()));
    put("device", meta.rdev().to_string());
    if !kind.is_dir() {
        // File systems count the names of directories differently.
        put("names", meta.nlink().to_string());
    }
    match xattrs(at) {
        Ok(xattrs) => xattrs.into_iter().for_each(|(name, value)| put(&name, value)),
        Err(error) => put("attributes", error.to_string()),
    }
    let target =
        kind.is_symlink().then(|| Ok(fs::read_link(at)?.as_os_str().as_bytes().escape_ascii().to_string()));
    drop(request);
    if kind.is_file() {
        put("size", meta.len().to_string());
    }
    match target.unwrap_or_else(|| if kind.is_file() { digest(at, meta.len()) } else { Ok(String::new()) }) {
        Ok(contents) => put("contents", contents),
        Err(error) => put("error", error.to_string()),
    }
    Ok((entry, meta.ino()))
}

/// The attributes, each as the name of a property and its value.
fn xattrs(at: &Path) -> Result<Vec<(String, String)>, Errno> {
    let mut list = vec![0; 65_536];
    let len = match rustix::fs::llistxattr(at, &mut list[..]) {
        Err(Errno::NOTSUP) => 0,
        other => other?,
    };
    let names = list[..len].split(|b| *b == 0).filter(|name| !name.is_empty());
    let read = names.map(|name| {
        let mut value = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(at, OsStr::from_bytes(name), &mut value[..])?;
        Ok((format!("attribute {}", name.escape_ascii()), value[..len].escape_ascii().to_string()))
    });
    read.collect()
}

fn digest(at: &Path, len: u64) -> io::Result<String> {
    let file = {
        let _request = watchdog::begin(RequestKind::Read, 0, 0);
        File::open(at)?
    };
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; READ.min(len) as usize];
    let offsets = match len <= WHOLE_BYTES {
        true => (0..len).step_by(READ as usize).collect(),
        false => vec![0, READ, len / 3, len / 2, len - READ],
    };
    for offset in offsets {
        let wanted = READ.min(len - offset) as usize;
        let _request = watchdog::begin(RequestKind::Read, offset, wanted as u64);
        file.read_exact_at(&mut buffer[..wanted], offset)?;
        hasher.write(&buffer[..wanted]);
    }
    Ok(format!("{:x}", hasher.finish()))
}

/// Returns a fault if a tree differs from the expected one.
pub fn compare(what: &str, expected: &Scan, found: &Scan) -> Result<(), Fault> {
    let difference = difference(expected, found);
    require!(difference.is_none(), Contents, "{what}: {}", difference.unwrap_or_default());
    Ok(())
}

/// Describes the differences between the expected tree and the one found; `None` if there are none.
pub fn difference(expected: &Scan, found: &Scan) -> Option<String> {
    let mut all: BTreeMap<&[u8], String> = BTreeMap::new();
    for (path, entry) in &expected.entries {
        let difference = match found.entries.get(path) {
            None => Some("is not there".into()),
            Some(other) => field_difference(entry, other),
        };
        all.extend(difference.map(|difference| (&path[..], difference)));
    }
    for path in found.entries.keys().filter(|path| !expected.entries.contains_key(*path)) {
        all.insert(path, "should not be there".into());
    }
    for (path, error) in &found.errors {
        match all.entry(path) {
            Place::Vacant(place) => drop(place.insert(format!("fails with {error}"))),
            Place::Occupied(mut place) => *place.get_mut() += &format!(" ({error})"),
        }
    }
    let lines = all.iter().take(5).map(|(path, what)| format!("/{}: {what}\n", path.escape_ascii()));
    (!all.is_empty()).then(|| format!("{} differences:\n{}", all.len(), lines.collect::<String>()))
}

/// Describes the properties that differ between two entries; `None` if there are none.
pub fn field_difference(expected: &Entry, found: &Entry) -> Option<String> {
    let mut names: Vec<_> = expected.keys().chain(found.keys()).collect();
    names.sort();
    names.dedup();
    let differs = |name: &&&String| expected.get(**name) != found.get(**name);
    let show = |name: &String| {
        let [found, expected] =
            [found, expected].map(|entry| entry.get(name).map_or("missing", String::as_str));
        format!("{name} is {found:.300} and should be {expected:.300}; ")
    };
    let text: String = names.iter().filter(differs).map(|name| show(name)).collect();
    (!text.is_empty()).then_some(text)
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
        let now = || scan(dir.path());
        write(1);
        fs::hard_link(at("f"), at("g")).unwrap();
        std::os::unix::fs::symlink("f", at("s")).unwrap();
        write(1);
        let before = now();
        assert_eq!(difference(&before, &now()), None);
        assert_eq!(before.entries[&b"g"[..]]["first name"], "f");
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
            says("attribute user.x");
            rustix::fs::lremovexattr(at("f"), "user.x").unwrap();
        }
        assert_eq!(difference(&before, &now()), None);
        fs::remove_file(at("s")).unwrap();
        std::os::unix::fs::symlink("g", at("s")).unwrap();
        says("/s: ");
        fs::remove_file(at("g")).unwrap();
        says("/g: is not there");
        says("names");
        fs::write(at("h"), "").unwrap();
        says("should not be there");
    }
}
