//! Reading a tree of files that others may change: never through a symbolic link, never outside of the tree.
//!
//! Files are opened below an open directory ([`Folder`]), name by name and with `O_NOFOLLOW`, so the kernel refuses links
//! instead of following them. openat2(2) could resolve whole paths so, but sandboxes refuse it: systemd's `RestrictSUIDSGID=`,
//! systemd-nspawn, gVisor. The type of a file is read from the opened inode, and not by its name again. A device, a pipe or a
//! socket is never opened for reading, because opening can wait or have side effects.
//!
//! This module does not decide what is read.

use crate::beneath::{Folder, one_name};
use crate::{SysError, failed};
use rustix::fs::{self, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The operation in the errors of opening a file.
const OPENING: &str = "opening";
/// Longest target of a link and longest list of attribute names, bytes; Linux has no longer ones.
const LIST_LEN_MAX: usize = 64 << 10;

/// The inode of a file, link, directory or special file.
#[derive(Debug)]
pub struct SourceFile(OwnedFd);

/// An extended attribute: full name, and value.
pub type SourceXattr = (Box<[u8]>, Box<[u8]>);

/// The answer of stat(2) about an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceStat {
    /// Type of file and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length, bytes.
    pub len_bytes: u64,
    /// Time of the last change of the contents: seconds since 1970, and nanoseconds.
    pub mtime: (i64, u32),
    /// Time of the last change of the contents or the metadata, nanoseconds since 1970 modulo 2^64. Unlike `mtime` no
    /// program can set it.
    pub ctime_ns: u64,
    /// Number of names.
    pub nlink: u64,
    /// Device that the inode is on.
    pub device: u64,
    /// Number of the inode on its device.
    pub inode: u64,
    /// Major and minor number of a device.
    pub special: (u32, u32),
    /// Whether the file takes less space than its length, so that it may have holes.
    pub may_have_holes: bool,
}

impl Folder {
    /// Returns the inode of a name in this directory, whatever it is. Only its existence is needed, no right to read it.
    pub fn source_file(&self, name: &[u8]) -> Result<SourceFile, SysError> {
        self.open_inode(one_name(name, OPENING)?)
    }

    /// Returns the inode of this directory.
    pub fn source_itself(&self) -> Result<SourceFile, SysError> {
        self.open_inode(b".")
    }

    fn open_inode(&self, name: &[u8]) -> Result<SourceFile, SysError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = fs::openat(self.as_fd(), name, flags, Mode::empty());
        opened.map(SourceFile).map_err(failed("opening the file"))
    }

    /// Opens a regular file below this directory for reading. Never waits.
    pub fn open_source(&self, path: &[u8]) -> Result<File, SysError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let cut = path.iter().rposition(|&byte| byte == b'/');
        let folder;
        let (parent, name) = match cut {
            Some(cut) => {
                folder = self.open_folder(&path[..cut])?;
                (folder.as_fd(), &path[cut + 1..])
            }
            None => (self.as_fd(), path),
        };
        let opened = fs::openat(parent, one_name(name, OPENING)?, flags, Mode::empty());
        let file = File::from(opened.map_err(failed("opening the file"))?);
        let stat = fs::fstat(&file).map_err(failed("looking at the file"))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(file),
            _ => Err(SysError::new("opening a file that is no longer a regular one", libc::ESTALE)),
        }
    }
}

impl SourceFile {
    /// Metadata.
    pub fn stat(&self) -> Result<SourceStat, SysError> {
        stat(&self.0)
    }

    /// Target of a symbolic link.
    pub fn link_target(&self) -> Result<Vec<u8>, SysError> {
        let target = fs::readlinkat(&self.0, c"", Vec::new()).map_err(failed("reading the symbolic link"))?;
        Ok(target.into_bytes())
    }

    /// Extended attributes whose names `is_wanted` accepts, sorted by name. Those that cannot be read are left out, and
    /// `unreadable` is called for each with its name and the reason.
    pub fn xattrs(
        &self,
        mut is_wanted: impl FnMut(&[u8]) -> bool,
        mut unreadable: impl FnMut(&[u8], SysError),
    ) -> Result<Vec<SourceXattr>, SysError> {
        // The calls for descriptors refuse those that are not open for reading. This path resolves to the inode itself,
        // also if that is a symbolic link.
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let mut names = vec![0u8; LIST_LEN_MAX];
        let len = match fs::listxattr(&path, &mut names) {
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            Err(Errno::NOENT) => {
                return Err(failed("listing the attributes through /proc, which has to be mounted")(
                    Errno::NOENT,
                ));
            }
            listed => listed.map_err(failed("listing the attributes"))?,
        };
        let mut value = vec![0u8; LIST_LEN_MAX];
        let mut xattrs = Vec::new();
        for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            if !is_wanted(name) {
                continue;
            }
            match fs::getxattr(&path, name, &mut value) {
                Ok(len) => xattrs.push((name.into(), value[..len].into())),
                // The attribute was removed after it was listed.
                Err(Errno::NODATA) => {}
                Err(e) => unreadable(name, failed("reading the attribute")(e)),
            }
        }
        xattrs.sort_unstable();
        Ok(xattrs)
    }
}

/// Metadata of an open file.
pub fn stat(file: impl AsFd) -> Result<SourceStat, SysError> {
    let stat = fs::fstat(file).map_err(failed("looking at the file"))?;
    let len_bytes = stat.st_size.unsigned_abs();
    Ok(SourceStat {
        mode: stat.st_mode,
        uid: stat.st_uid,
        gid: stat.st_gid,
        len_bytes,
        mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
        ctime_ns: (stat.st_ctime as u64).wrapping_mul(1_000_000_000).wrapping_add(stat.st_ctime_nsec as u64),
        nlink: stat.st_nlink,
        device: stat.st_dev,
        inode: stat.st_ino,
        special: (fs::major(stat.st_rdev), fs::minor(stat.st_rdev)),
        may_have_holes: stat.st_blocks.unsigned_abs().saturating_mul(512) < len_bytes,
    })
}

/// The ranges of an open file of `len_bytes` that are no holes, ascending, `count_max` at most: in a file with more of them
/// the shortest holes count as data. `None`: the file system does not tell.
pub fn data_ranges(
    file: &File,
    len_bytes: u64,
    count_max: usize,
) -> Result<Option<Vec<Range<u64>>>, SysError> {
    let mut found = DataRanges { ranges: Vec::new(), hole_bytes_min: 1, count_max };
    let mut at = 0;
    while at < len_bytes {
        let start = match fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(None),
            Err(e) => return Err(failed("looking for data in a file")(e)),
        };
        let end = fs::seek(file, SeekFrom::Hole(start)).map_err(failed("looking for a hole in a file"))?;
        let (start, end) = (start.min(len_bytes), end.min(len_bytes));
        // A file that is changed meanwhile could go backwards.
        if end <= at || start < at {
            return Ok(None);
        }
        found.add(start..end);
        at = end;
    }
    Ok(Some(found.ranges))
}

/// Ranges of data, of which there is a bounded number.
struct DataRanges {
    ranges: Vec<Range<u64>>,
    /// Shorter holes count as data, bytes.
    hole_bytes_min: u64,
    count_max: usize,
}

impl DataRanges {
    /// Adds a range after the others.
    fn add(&mut self, range: Range<u64>) {
        self.ranges.push(range);
        self.close_last_hole();
        while self.ranges.len() > self.count_max.max(1) {
            self.hole_bytes_min = self.hole_bytes_min.saturating_mul(2);
            self.close_all_holes();
        }
    }

    /// Joins the last two ranges if the hole between them is short.
    fn close_last_hole(&mut self) {
        if let [.., before, last] = &mut self.ranges[..]
            && last.start - before.end < self.hole_bytes_min
        {
            before.end = last.end;
            self.ranges.pop();
        }
    }

    /// Joins all ranges between which the hole is short.
    fn close_all_holes(&mut self) {
        let hole_bytes_min = self.hole_bytes_min;
        self.ranges.dedup_by(|next, before| {
            let is_short = next.start - before.end < hole_bytes_min;
            if is_short {
                before.end = next.end;
            }
            is_short
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_read_and_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/file"), "x").unwrap();
        symlink("d", dir.path().join("link")).unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let mut names: Vec<_> = folder.names().unwrap().map(Result::unwrap).collect();
        names.sort();
        assert_eq!(names, [b"d".as_slice().into(), b"link".as_slice().into()]);
        assert_eq!(folder.source_file(b"link").unwrap().link_target().unwrap(), b"d");
        assert!(folder.open_source(b"link/file").is_err() && folder.open_source(b"link").is_err());
        assert_eq!(stat(folder.open_source(b"d/file").unwrap()).unwrap().len_bytes, 1);
        assert!(folder.open_source(b"d").is_err());
        for name in [&b"."[..], b"..", b"", b"d/file", b"/etc/passwd", b"d/../d"] {
            assert_eq!(folder.source_file(name).unwrap_err().errno, libc::EINVAL);
        }
        for path in [&b".."[..], b"d/..", b"../d/file", b"d/../d/file", b"d/"] {
            assert_eq!(folder.open_source(path).unwrap_err().errno, libc::EINVAL);
        }
        let own = stat(&folder).unwrap();
        assert_eq!(folder.source_itself().unwrap().stat().unwrap().inode, own.inode);
    }

    #[test]
    fn holes_are_found() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&[1; 4096], 4 << 20).unwrap();
        let Some(ranges) = data_ranges(&file, 8 << 20, 100).unwrap() else { return };
        let covers = ranges.iter().any(|range| range.start <= 4 << 20 && range.end >= (4 << 20) + 4096);
        assert!(covers && ranges.last().unwrap().end <= 8 << 20);
    }

    #[test]
    fn of_too_many_ranges_those_with_short_holes_between_them_become_one() {
        let mut found = DataRanges { ranges: Vec::new(), hole_bytes_min: 1, count_max: 1000 };
        let (mut at, mut state, mut all) = (0u64, 1u64, Vec::new());
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (hole, len) = ((state >> 33) % 5000, 1 + (state >> 50) % 100);
            all.push(at + hole..at + hole + len);
            found.add(at + hole..at + hole + len);
            at += hole + len;
            assert!(found.ranges.len() <= 1000);
        }
        // The ranges that remain have long holes between them, whenever they became too many.
        let mut wanted: Vec<Range<u64>> = Vec::new();
        for range in all {
            match wanted.last_mut() {
                Some(last) if range.start - last.end < found.hole_bytes_min => last.end = range.end,
                _ => wanted.push(range),
            }
        }
        assert!(found.hole_bytes_min > 1 && found.ranges == wanted);
        let mut one = DataRanges { ranges: Vec::new(), hole_bytes_min: 1, count_max: 1 };
        [0..1, u64::MAX - 1..u64::MAX].into_iter().for_each(|range| one.add(range));
        assert!(one.ranges.len() == 1 && one.ranges[0] == (0..u64::MAX));
    }
}
