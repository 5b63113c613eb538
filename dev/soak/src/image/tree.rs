//! Makes a random tree as the source of an image: names, contents, links, special files, attributes, owners and times.

use super::config::{Shape, Tree};
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
/// Longest name. mkfs.erofs 1.5 truncates longer ones, and then does not find the file.
const NAME_MAX: u64 = 254;
/// Longest piece of a file with one kind of contents, bytes.
const PIECE: u64 = 128 << 10;

/// Builds a tree.
struct TreeBuilder<'a> {
    random: Random,
    root: &'a Path,
    /// Directories, relative to the root.
    dirs: Vec<PathBuf>,
    /// Files that may get a further name.
    files: Vec<PathBuf>,
    /// All entries, for their metadata.
    all: Vec<PathBuf>,
    /// Bytes that further files may take.
    left: u64,
}

/// Makes the tree in the new folder `root`.
pub fn make(tree: &Tree, root: &Path) -> io::Result<()> {
    fs::create_dir(root)?;
    let mut builder = TreeBuilder {
        random: Random::new(tree.seed),
        root,
        dirs: vec![PathBuf::new()],
        files: Vec::new(),
        all: vec![PathBuf::new()],
        left: tree.bytes,
    };
    for _ in 0..tree.entries {
        builder.entry(tree)?;
    }
    // Children before their parents, because a change of an entry may change the time of its directory.
    for path in std::mem::take(&mut builder.all).iter().rev() {
        builder.apply_metadata(&root.join(path), tree)?;
    }
    Ok(())
}

impl TreeBuilder<'_> {
    fn entry(&mut self, tree: &Tree) -> io::Result<()> {
        let is_dir = match tree.shape {
            Shape::Mixed => self.random.percent(15),
            Shape::Deep => self.random.percent(40),
            Shape::Wide => false,
        };
        let parent = match tree.shape {
            Shape::Wide => PathBuf::new(),
            Shape::Deep if self.random.percent(80) => self.dirs.last().cloned().unwrap_or_default(),
            _ => self.dirs[self.random.below(self.dirs.len() as u64) as usize].clone(),
        };
        let path = parent.join(self.name());
        let at = self.root.join(&path);
        if path.as_os_str().len() > PATH_MAX || fs::symlink_metadata(&at).is_ok() {
            return Ok(());
        }
        match self.random.below(100) {
            _ if is_dir => {
                fs::create_dir(&at)?;
                self.dirs.push(path.clone());
            }
            0..=69 => {
                self.regular(&at)?;
                self.files.push(path.clone());
            }
            70..=79 => {
                let target = self.target();
                symlink(target, &at)?;
            }
            80..=89 if !self.files.is_empty() => {
                let first = &self.files[self.random.below(self.files.len() as u64) as usize];
                return fs::hard_link(self.root.join(first), &at);
            }
            _ => self.special(&at)?,
        }
        self.all.push(path);
        Ok(())
    }

    /// Draws a name: short, of the greatest length, or with unusual bytes.
    fn name(&mut self) -> OsString {
        let random = &mut self.random;
        let len = match random.below(10) {
            0 => NAME_MAX,
            1 => random.between(1, NAME_MAX),
            2 => 1,
            _ => random.between(2, 20),
        };
        let odd = random.percent(10);
        let mut bytes: Vec<u8> = (0..len)
            .map(|_| match odd {
                true => random.between(1, 255) as u8,
                false => random.pick(b"abcdefghijklmnopqrstuvwxyz0123456789.-_ "),
            })
            .collect();
        bytes.iter_mut().filter(|b| **b == b'/').for_each(|b| *b = b'_');
        if bytes.iter().all(|b| *b == b'.') {
            bytes = b"dots".to_vec();
        }
        OsString::from_vec(bytes)
    }

    fn target(&mut self) -> OsString {
        match self.random.below(6) {
            0 => "../canary".into(),
            1 => "../../../../../../../../etc/passwd".into(),
            2 => OsString::from_vec(vec![b'l'; self.random.between(1, 4000) as usize]),
            3 if !self.files.is_empty() => {
                let file = &self.files[self.random.below(self.files.len() as u64) as usize];
                Path::new("/").join(file).into_os_string()
            }
            _ => self.name(),
        }
    }

    /// Makes a FIFO, socket or device.
    fn special(&mut self, at: &Path) -> io::Result<()> {
        let kinds = [FileType::Fifo, FileType::Socket, FileType::CharacterDevice, FileType::BlockDevice];
        let kind = self.random.pick(&kinds);
        let device = match kind {
            FileType::CharacterDevice | FileType::BlockDevice => rustix::fs::makedev(
                self.random.below(1 << 12) as u32,
                self.random.doubling(1, 1 << 20) as u32,
            ),
            _ => 0,
        };
        Ok(rustix::fs::mknodat(CWD, at, kind, Mode::from_raw_mode(0o644), device)?)
    }

    fn regular(&mut self, at: &Path) -> io::Result<()> {
        let file = File::create_new(at)?;
        let random = &mut self.random;
        let len = match random.below(10) {
            0 => 0,
            1 => random.doubling(1, 4096),
            2 => 4096 * random.between(1, 20),
            3 => 4096 * random.between(1, 20) + random.pick(&[1, 4095]),
            _ => random.doubling(1, 4 << 20),
        };
        let len = len.min(self.left);
        self.left -= len;
        file.set_len(len)?;
        let mut at = 0;
        while at < len {
            let piece = random.between(1, PIECE).min(len - at);
            if let Some(bytes) = contents(random, piece as usize) {
                file.write_all_at(&bytes, at)?;
            }
            at += piece;
        }
        Ok(())
    }

    /// Sets owner, mode, attributes and times of an entry, in an order in which no step undoes another.
    fn apply_metadata(&mut self, at: &Path, tree: &Tree) -> io::Result<()> {
        let is_link = fs::symlink_metadata(at)?.is_symlink();
        let random = &mut self.random;
        if random.percent(50) {
            let ids = [0, 1, 1000, 65534, 65535, 65536, 4_000_000_000];
            lchown(at, Some(random.pick(&ids)), Some(random.pick(&ids)))?;
        }
        if !is_link && random.percent(70) {
            let mode = random.pick(&[0o644, 0o755, 0o600, 0o000, 0o4755, 0o2755, 0o1777, 0o7777, 0o444]);
            fs::set_permissions(at, fs::Permissions::from_mode(mode))?;
        }
        if random.percent(tree.xattrs) {
            for _ in 0..random.doubling(1, 12) {
                xattr(random, at);
            }
        }
        let seconds = match random.below(4) {
            0 => random.below(1 << 31) as i64,
            1 => random.pick(&[0, 1, -1, 1_234_567_890, 4_294_967_296]),
            _ => 1_700_000_000 + random.below(1000) as i64,
        };
        let nanoseconds = if random.percent(50) { random.below(1_000_000_000) as i64 } else { 0 };
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(rustix::fs::utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// Sets a random attribute. Errors are ignored: the file may not support the attribute, or have no room for it.
fn xattr(random: &mut Random, at: &Path) {
    let name: Vec<u8> = match random.below(8) {
        0 => b"system.posix_acl_access".to_vec(),
        1 => b"system.posix_acl_default".to_vec(),
        2 => format!("trusted.t{}", random.below(4)).into(),
        3 => format!("security.s{}", random.below(4)).into(),
        4 => format!("user.{}", "n".repeat(random.between(1, 200) as usize)).into(),
        _ => format!("user.u{}", random.below(6)).into(),
    };
    let value = match name.starts_with(b"system.") {
        true => acl(random),
        // Few different values, so that mkfs.erofs can share some.
        false => vec![b'v'; random.pick(&[0, 1, 3, 4, 20, 20, 300])],
    };
    let _ = rustix::fs::lsetxattr(at, OsStr::from_bytes(&name), &value, XattrFlags::empty());
}

/// Returns an access control list with one named user and a mask.
fn acl(random: &mut Random) -> Vec<u8> {
    let entries = [
        (1, 7, u32::MAX),
        (2, 5, 1000),
        (4, random.below(8) as u16, u32::MAX),
        (16, 7, u32::MAX),
        (32, 4, u32::MAX),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permission, id) in entries {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(permission));
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

/// Draws contents of one kind; `None` is a hole.
fn contents(random: &mut Random, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    match random.below(7) {
        0 => return None,
        1 => {}
        2 => bytes.fill(random.next() as u8),
        3 => random.fill(&mut bytes),
        4 => {
            let text = format!("{} lines of text, number {}\n", random.below(100), random.below(10));
            bytes.iter_mut().zip(text.bytes().cycle()).for_each(|(b, t)| *b = t);
        }
        5 => {
            // Repetitions of a long string that does not compress.
            let mut unit = vec![0; random.doubling(1, 70_000) as usize];
            random.fill(&mut unit);
            bytes.iter_mut().zip(unit.iter().cycle()).for_each(|(b, u)| *b = *u);
        }
        _ => bytes.iter_mut().for_each(|b| *b = random.pick(b"aabbbcde   \n")),
    }
    Some(bytes)
}
