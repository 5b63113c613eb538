//! Makes a random tree as the source of an image or in a file system: names, contents, links, special files, attributes, owners and times.

use crate::random::Random;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

/// Longest path below the root, so that system calls accept every path of a case.
const PATH_MAX: usize = 2500;
/// Longest name.
const NAME_MAX: u64 = 255;
/// Longest piece of a file with one kind of contents, bytes.
const PIECE: u64 = 128 << 10;

/// The parameters of a drawn tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    seed: u64,
    /// Share of directories among the entries, and how many of the entries are in the newest one, percent.
    dirs: (u64, u64),
    /// Number of files and directories.
    entries: u64,
    /// Approximate bytes of all regular files.
    bytes: u64,
    /// Longest regular file, bytes.
    longest: u64,
    /// Share of files with extended attributes, percent.
    xattrs: u64,
}

impl Tree {
    /// Draws a tree: mixed, deep, or all files in one directory.
    pub fn draw(random: &mut Random) -> Self {
        Tree {
            seed: random.next(),
            dirs: random.pick(&[(15, 0), (15, 0), (40, 80), (0, 0)]),
            entries: random.doubling(1, 1500),
            bytes: random.doubling(1 << 10, 12 << 20),
            longest: 4 << 20,
            xattrs: random.pick(&[0, 10, 50, 100]),
        }
    }

    /// Draws a tree of large files with so many bytes.
    pub fn draw_large(random: &mut Random, bytes: u64) -> Self {
        let tree = Tree { bytes, longest: 128 << 20, ..Tree::draw(random) };
        // A file system of this size may have no space for more attributes.
        Tree { entries: random.doubling(100, 1500), xattrs: tree.xattrs.min(10), ..tree }
    }

    /// Makes the tree in the new folder `root`.
    pub fn make(&self, root: &Path) -> io::Result<()> {
        fs::create_dir(root)?;
        let random = &mut Random::new(self.seed);
        let (mut dirs, mut all) = (vec![PathBuf::new()], vec![PathBuf::new()]);
        let mut files: Vec<PathBuf> = Vec::new();
        let mut left = self.bytes;
        for _ in 0..self.entries {
            let is_in_newest = random.percent(self.dirs.1);
            let number = if is_in_newest { dirs.len() - 1 } else { random.below(dirs.len() as u64) as usize };
            let path = dirs[number].join(name(random));
            let at = root.join(&path);
            if path.as_os_str().len() > PATH_MAX || fs::symlink_metadata(&at).is_ok() {
                continue;
            }
            let known = (!files.is_empty()).then(|| files[random.below(files.len() as u64) as usize].clone());
            match (random.percent(self.dirs.0), random.below(10), known) {
                (true, ..) => {
                    fs::create_dir(&at)?;
                    dirs.push(path.clone());
                }
                (_, 0..=6, _) => {
                    regular(random, &at, self.longest, &mut left)?;
                    files.push(path.clone());
                }
                (_, 7, known) => {
                    // XFS has shorter targets.
                    let target = target(random, known.as_deref());
                    symlink(target, &at).or_else(|_| symlink("short", &at))?;
                }
                (_, 8, Some(known)) => {
                    fs::hard_link(root.join(known), &at)?;
                    continue;
                }
                _ => special(random, &at)?,
            }
            all.push(path);
        }
        // Children before their parents, because a change of an entry may change the time of its directory.
        all.iter().rev().try_for_each(|path| self.apply_metadata(random, &root.join(path)))
    }

    /// Sets owner, mode, attributes and times of an entry, in an order in which no step undoes another.
    fn apply_metadata(&self, random: &mut Random, at: &Path) -> io::Result<()> {
        if random.percent(50) {
            let ids = [0, 1, 1000, 65534, 65535, 65536, 4_000_000_000];
            lchown(at, Some(random.pick(&ids)), Some(random.pick(&ids)))?;
        }
        if !fs::symlink_metadata(at)?.is_symlink() && random.percent(70) {
            let mode = random.pick(&[0o644, 0o755, 0o600, 0o000, 0o4755, 0o2755, 0o1777, 0o7777, 0o444]);
            fs::set_permissions(at, fs::Permissions::from_mode(mode))?;
        }
        if random.percent(self.xattrs) {
            (0..random.doubling(1, 12)).for_each(|_| xattr(random, at));
        }
        let tv_sec = match random.below(4) {
            0 => random.below(1 << 31) as i64,
            1 => random.pick(&[0, 1, -1, 1_234_567_890, 4_294_967_296]),
            _ => 1_700_000_000 + random.below(1000) as i64,
        };
        let tv_nsec = if random.percent(50) { random.below(1_000_000_000) as i64 } else { 0 };
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(rustix::fs::utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// Draws a name: short, of the greatest length, or with unusual bytes.
fn name(random: &mut Random) -> OsString {
    let len = match random.below(10) {
        0 => NAME_MAX,
        1 => random.between(1, NAME_MAX),
        2 => 1,
        _ => random.between(2, 20),
    };
    let is_odd = random.percent(10);
    let byte = |_| match is_odd {
        true => random.between(1, 255) as u8,
        false => random.pick(b"abcdefghijklmnopqrstuvwxyz0123456789.-_ "),
    };
    let mut bytes: Vec<u8> = (0..len).map(byte).map(|byte| if byte == b'/' { b'_' } else { byte }).collect();
    if bytes.iter().all(|b| *b == b'.') {
        bytes = b"dots".to_vec();
    }
    OsString::from_vec(bytes)
}

/// Draws the target of a symbolic link.
fn target(random: &mut Random, file: Option<&Path>) -> OsString {
    match (random.below(6), file) {
        (0, _) => "../canary".into(),
        (1, _) => "../../../../../../../../etc/passwd".into(),
        (2, _) => OsString::from_vec(vec![b'l'; random.between(1, 4000) as usize]),
        (3, Some(file)) => Path::new("/").join(file).into_os_string(),
        _ => name(random),
    }
}

/// Makes a FIFO, socket or device.
fn special(random: &mut Random, at: &Path) -> io::Result<()> {
    let kinds = [FileType::Fifo, FileType::Socket, FileType::CharacterDevice, FileType::BlockDevice];
    let kind = random.pick(&kinds);
    let (major, minor) = (random.below(1 << 12) as u32, random.doubling(1, 1 << 20) as u32);
    let is_device = [FileType::CharacterDevice, FileType::BlockDevice].contains(&kind);
    let device = if is_device { rustix::fs::makedev(major, minor) } else { 0 };
    let make = |device| rustix::fs::mknodat(CWD, at, kind, Mode::from_raw_mode(0o644), device);
    // XFS has smaller minor numbers.
    Ok(make(device).or_else(|_| make(rustix::fs::makedev(1, 3)))?)
}

/// Makes a regular file, of at most the bytes that are left.
fn regular(random: &mut Random, at: &Path, longest: u64, left: &mut u64) -> io::Result<()> {
    let len = match random.below(10) {
        0 => 0,
        1 => random.doubling(1, 4096),
        2 => 4096 * random.between(1, 20),
        3 => 4096 * random.between(1, 20) + random.pick(&[1, 4095]),
        _ => random.doubling(1, longest),
    };
    let len = len.min(*left);
    *left -= len;
    let file = File::create_new(at)?;
    file.set_len(len)?;
    let mut done = 0;
    while done < len {
        let piece = random.between(1, PIECE).min(len - done);
        if let Some(bytes) = contents(random, piece as usize) {
            file.write_all_at(&bytes, done)?;
        }
        done += piece;
    }
    Ok(())
}

/// Draws contents of one kind; `None` is a hole.
fn contents(random: &mut Random, len: usize) -> Option<Vec<u8>> {
    let unit_bytes = match random.below(6) {
        0 => return None,
        // Equal bytes, text, and repetitions of a long string that does not compress.
        1 => 1,
        2 => random.between(20, 50),
        3 => random.doubling(1, 70_000),
        4 => len as u64,
        _ => return Some((0..len).map(|_| random.pick(b"aabbbcde   \n")).collect()),
    };
    let mut unit = vec![0; unit_bytes as usize];
    random.fill(&mut unit);
    Some(unit.into_iter().cycle().take(len).collect())
}

/// Sets a random attribute. Errors are ignored: the file may not support the attribute, or have no space for it.
fn xattr(random: &mut Random, at: &Path) {
    let name = match random.below(8) {
        0 => "system.posix_acl_access".to_string(),
        1 => "system.posix_acl_default".to_string(),
        2 => format!("trusted.t{}", random.below(4)),
        3 => format!("security.s{}", random.below(4)),
        4 => format!("user.{}", "n".repeat(random.between(1, 200) as usize)),
        _ => format!("user.u{}", random.below(6)),
    };
    let value = match name.starts_with("system.") {
        true => acl(random),
        // Few different values, so that images can share some.
        false => vec![b'v'; random.pick(&[0, 1, 3, 4, 20, 20, 300])],
    };
    let _ = rustix::fs::lsetxattr(at, OsStr::from_bytes(name.as_bytes()), &value, XattrFlags::empty());
}

/// Returns an access control list with one named user and a mask: tag, permissions and id of each entry.
fn acl(random: &mut Random) -> Vec<u8> {
    let group = random.below(8) as u16;
    let entries =
        [(1, 7, u32::MAX), (2, 5, 1000), (4, group, u32::MAX), (16, 7, u32::MAX), (32, 4, u32::MAX)];
    let entry = |(tag, permissions, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    2u32.to_le_bytes().into_iter().chain(entries.into_iter().flat_map(entry)).collect()
}
