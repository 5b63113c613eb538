//! The contents of files in a directory, which are those that were there when it was scanned, or an error.

use super::read_errors::is_of_machine;
use super::root::Root;
use crate::content::{Content, Contents, RangeReader, Reader, Stored};
use crate::{BuildError, Result};
use pagefold_sys::source_tree::{self, SourceStat};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Most ranges of data of a file, 16 bytes each. If a file has more, the builder reads its shortest holes as zeroes.
const DATA_RANGES_MAX: usize = 1 << 16;

/// The properties in which a file must still agree when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    len_bytes: u64,
    device: u64,
    inode: u64,
    mtime: (i64, u32),
    ctime_ns: u64,
    may_have_holes: bool,
}

impl Identity {
    pub(super) fn of(stat: &SourceStat) -> Self {
        let SourceStat { len_bytes, device, inode, mtime, ctime_ns, may_have_holes, .. } = *stat;
        Identity { len_bytes, device, inode, mtime, ctime_ns, may_have_holes }
    }

    pub(super) fn stored(self) -> Stored {
        let (seconds, nanoseconds) = self.mtime;
        let last = u64::from(nanoseconds) << 1 | u64::from(self.may_have_holes);
        Stored {
            len_bytes: self.len_bytes,
            words: [self.device, self.inode, seconds as u64, last, self.ctime_ns],
        }
    }

    /// Whether a file was changed last when the other one was.
    pub(super) fn has_same_times(self, other: &Stored) -> bool {
        let other = Identity::restored(other);
        (self.mtime, self.ctime_ns) == (other.mtime, other.ctime_ns)
    }

    fn restored(stored: &Stored) -> Self {
        let (len_bytes, [device, inode, seconds, last, ctime_ns]) = (stored.len_bytes, stored.words);
        let mtime = (seconds as i64, (last >> 1) as u32);
        Identity { len_bytes, device, inode, mtime, ctime_ns, may_have_holes: last & 1 != 0 }
    }

    /// Whether a file is the same, and was not changed. It may have got holes.
    fn is_that_of(self, other: Self) -> bool {
        self == Identity { may_have_holes: self.may_have_holes, ..other }
    }
}

/// The contents of all files of the directory.
#[derive(Debug)]
pub(super) struct Files(pub(super) Arc<Root>);

impl Contents for Files {
    fn content(&self, file: &Stored, path: &[u8]) -> Arc<dyn Content> {
        let (root, identity) = (self.0.clone(), Identity::restored(file));
        Arc::new(SourceContent { root, path: path.into(), identity })
    }
}

/// Contents of a file in the directory.
#[derive(Debug, Clone)]
struct SourceContent {
    root: Arc<Root>,
    path: Box<[u8]>,
    /// Its properties when the directory was scanned.
    identity: Identity,
}

impl Content for SourceContent {
    fn len_bytes(&self) -> u64 {
        self.identity.len_bytes
    }

    fn open(&self) -> Result<Box<dyn Reader + '_>> {
        let file = match self.root.open(&self.path) {
            Ok(file) => Arc::new(file),
            Err(e) => {
                return match e.errno {
                    // It was removed, or is a link or a pipe now.
                    libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ESTALE => Err(self.changed()),
                    _ if self.root.read_errors.are_noted() && !is_of_machine(&e) => {
                        self.root.read_errors.add_whole(&self.path, self.len_bytes(), &e);
                        Ok(Box::new(Zeroes))
                    }
                    _ => Err(self.failed(e.into())),
                };
            }
        };
        self.check(&file)?;
        Ok(Box::new(SourceReader { content: self, file }))
    }
}

impl SourceContent {
    fn failed(&self, error: io::Error) -> BuildError {
        BuildError::source(&self.root.shown(&self.path), error)
    }

    fn changed(&self) -> BuildError {
        BuildError::Changed { path: self.root.shown(&self.path) }
    }

    fn read_failed(&self, error: io::Error) -> BuildError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.changed(),
            _ => self.failed(error),
        }
    }

    /// Fills `buf` from byte `at` on. Bytes that cannot be read are zeroes if such errors are noted.
    fn read_exact_at(&self, file: &File, buf: &mut [u8], at: u64) -> Result<()> {
        let errors = &self.root.read_errors;
        if !errors.are_noted() {
            return file.read_exact_at(buf, at).map_err(|e| self.read_failed(e));
        }
        if errors.has(&self.path) || file.read_exact_at(buf, at).is_err() {
            let read = |piece: &mut [u8], at| file.read_at(piece, at);
            return errors.read(&self.path, self.len_bytes(), buf, at, read).map_err(|e| self.failed(e));
        }
        Ok(())
    }

    /// Compares inode, length and times of the open file with those of the scan. A file of which something could not be read
    /// may have another length now: some file systems learn it then.
    fn check(&self, file: &File) -> Result<()> {
        if self.root.read_errors.has(&self.path) {
            return Ok(());
        }
        let now = source_tree::stat(file).map_err(|e| self.failed(e.into()))?;
        if self.identity.is_that_of(Identity::of(&now)) { Ok(()) } else { Err(self.changed()) }
    }
}

struct SourceReader<'c> {
    content: &'c SourceContent,
    file: Arc<File>,
}

impl Reader for SourceReader<'_> {
    fn data_ranges(&self) -> Result<Option<Vec<Range<u64>>>> {
        if !self.content.identity.may_have_holes {
            return Ok(None);
        }
        let ranges = source_tree::data_ranges(&self.file, self.content.len_bytes(), DATA_RANGES_MAX);
        match ranges {
            // Reading will show what of it can be read.
            Err(_) if self.content.root.read_errors.are_noted() => Ok(None),
            ranges => ranges.map_err(|e| self.content.failed(e.into())),
        }
    }

    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        self.content.read_exact_at(&self.file, buf, at)
    }

    fn range(&self, start: u64) -> Option<Box<dyn RangeReader>> {
        let (content, file) = (self.content.clone(), self.file.clone());
        Some(Box::new(SourceRange { content, file, start }))
    }

    fn finish(&self) -> Result<()> {
        self.content.check(&self.file)
    }
}

/// A file that could not be opened.
struct Zeroes;

impl Reader for Zeroes {
    fn read_exact_at(&self, buf: &mut [u8], _at: u64) -> Result<()> {
        buf.fill(0);
        Ok(())
    }
}

/// A range of a file in the directory.
struct SourceRange {
    content: SourceContent,
    file: Arc<File>,
    /// Its first byte.
    start: u64,
}

impl RangeReader for SourceRange {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.content.read_exact_at(&self.file, buf, self.start + at)?;
        // The file's reader may have ended before.
        self.content.check(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use crate::BuildError;
    use crate::content::Content;
    use crate::source::directory::{DirectoryOptions, scan};
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    /// Writes a file, scans its folder, and passes the contents of the file to `with`.
    fn with_content(with: impl FnOnce(&Path, &dyn Content)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
        fs::write(&path, bytes).unwrap();
        let tree = scan(folder.path(), &DirectoryOptions::default()).unwrap().tree;
        let id = tree.find(b"file").unwrap();
        with(&path, tree.content(id, b"file").unwrap().as_ref());
    }

    #[test]
    fn a_range_has_the_bytes_from_its_start_on() {
        with_content(|path, content| {
            let reader = content.open().unwrap();
            let whole = fs::read(path).unwrap();
            let (mut begin, mut range, mut end) = (vec![0; 100], vec![0; 8000], vec![0; 1900]);
            reader.read_exact_at(&mut begin, 0).unwrap();
            let reads_range = reader.range(100).unwrap();
            reader.read_exact_at(&mut end, 8100).unwrap();
            reader.finish().unwrap();
            drop(reader);
            let room = range.as_mut_slice();
            std::thread::scope(|scope| scope.spawn(move || reads_range.read(0, room)).join())
                .unwrap()
                .unwrap();
            assert!([begin, range, end].concat() == whole);
        });
    }

    #[test]
    fn a_range_of_a_file_that_changes_after_its_reader_has_ended_is_an_error() {
        let shorten = |path: &Path| fs::File::options().write(true).open(path).unwrap().set_len(50).unwrap();
        let touch = |path: &Path| {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(5)).unwrap();
        };
        for change in [shorten as fn(&Path), touch] {
            with_content(|path, content| {
                let reader = content.open().unwrap();
                let range = reader.range(0).unwrap();
                reader.finish().unwrap();
                change(path);
                let read = range.read(0, &mut [0; 10_000]);
                assert!(
                    matches!(&read, Err(BuildError::Changed { path: named }) if named == path),
                    "{read:?}"
                );
            });
        }
    }
}
