//! Objects of servers that do not answer range requests: downloaded whole into an unnamed file, and read from there.
//!
//! Only commands that read all of an object do this, and say so: a mount or a listing would wait for bytes that nobody
//! wants. The file is on disk, not in memory, and ends with the process. The deadline of reads does not bound a download,
//! whose length is that of the object; a server that says nothing for a third of it does. The server is hostile: an object
//! takes no more than half of the space that is free when its download begins.

use crate::RemoteError;
use crate::blocks::Loaded;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are written at a time.
const STEP_BYTES: usize = 256 << 10;

/// A file for such objects, one after the other.
#[derive(Debug)]
pub struct Spool {
    /// The file, or why there is none.
    file: Result<File, String>,
    folder: PathBuf,
    /// The end of the last object. It is held while one is downloaded.
    end: Mutex<u64>,
    /// Gets a sentence when a download begins.
    note: fn(&str),
}

/// An object in the file.
#[derive(Debug)]
pub(crate) struct SpooledObject {
    spool: Arc<Spool>,
    start: u64,
    pub(crate) len_bytes: u64,
}

impl Spool {
    /// Makes an unnamed file in a folder. If that fails, downloads do: most objects need none.
    pub fn create(folder: &Path, note: fn(&str)) -> Self {
        use rustix::fs::{Mode, OFlags, open};
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(folder, flags, Mode::RUSR | Mode::WUSR).map(File::from).map_err(|e| {
            let folder = folder.display();
            format!("no temporary file can be made in '{folder}': {e}; TMPDIR names another folder")
        });
        Spool { file, folder: folder.to_path_buf(), end: Mutex::default(), note }
    }

    /// The file; fails if none could be made.
    pub(crate) fn file(&self) -> Result<&File, RemoteError> {
        let failed = |why: &String| RemoteError::SetUp {
            what: format!(
                "the server does not answer range requests, and the whole object is not downloaded: {why}"
            ),
        };
        self.file.as_ref().map_err(failed)
    }

    /// Downloads the object `name`: all that the reader has, which is `len_bytes` if the server says so.
    pub(crate) fn download(
        self: &Arc<Self>,
        name: &str,
        reader: &mut dyn Read,
        len_bytes: Option<u64>,
    ) -> Result<SpooledObject, RemoteError> {
        let file = self.file()?;
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let failed =
            |what: String| RemoteError::Connection { what: format!("downloading the whole object: {what}") };
        let free = rustix::fs::fstatvfs(file).map_err(|e| failed(e.to_string()))?;
        let max_bytes = free.f_bavail.saturating_mul(free.f_frsize) / 2;
        let too_long = || {
            let folder = self.folder.display();
            failed(format!(
                "it is longer than half of the space that is free in '{folder}'; TMPDIR names another folder"
            ))
        };
        if len_bytes.is_some_and(|len| len > max_bytes) {
            return Err(too_long());
        }
        (self.note)(&format!(
            "the server of '{name}' does not answer range requests: the whole object is downloaded to '{}' first",
            self.folder.display()
        ));
        let (start, mut at) = (*end, *end);
        let mut step = vec![0; STEP_BYTES];
        loop {
            let read = match reader.read(&mut step) {
                Ok(0) => break,
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(failed(format!("after {} bytes: {e}", at - start))),
            };
            if at - start + read as u64 > max_bytes {
                return Err(too_long());
            }
            let bytes = step.get(..read).unwrap_or_default();
            file.write_all_at(bytes, at).map_err(|e| failed(format!("'{}': {e}", self.folder.display())))?;
            at += read as u64;
        }
        let found = at - start;
        if len_bytes.is_some_and(|len| len != found) {
            return Err(failed(format!("the connection ended after {found} bytes")));
        }
        *end = at;
        Ok(SpooledObject { spool: self.clone(), start, len_bytes: found })
    }
}

impl SpooledObject {
    /// Reads a range, inside the object, in pieces of `piece_bytes`.
    pub(crate) fn read(&self, range: &Range<u64>, piece_bytes: u64) -> Result<Loaded, RemoteError> {
        let starts = (range.start..range.end).step_by(usize::try_from(piece_bytes).unwrap_or(usize::MAX));
        let piece = |start: u64| {
            let mut bytes = vec![0; piece_bytes.min(range.end - start) as usize];
            let read = self.spool.file()?.read_exact_at(&mut bytes, self.start + start);
            read.map(|()| bytes)
                .map_err(|e| RemoteError::Connection { what: format!("the downloaded object: {e}") })
        };
        starts.map(piece).collect()
    }
}

/// Gives the space of the object back.
impl Drop for SpooledObject {
    fn drop(&mut self) {
        use rustix::fs::{FallocateFlags, fallocate};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Ok(file) = &self.spool.file
            && self.len_bytes > 0
        {
            // A file system that cannot has the space back when the process ends.
            let _ = fallocate(file, flags, self.start, self.len_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_back_and_broken_ones_refused() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Arc::new(Spool::create(folder.path(), |_| {}));
        let bytes = |n: u8| (0..700_000_u32).map(|at| (at % 251) as u8 ^ n).collect::<Vec<_>>();
        let (first, second) = (bytes(1), bytes(2));
        let a = spool.download("a", &mut &first[..], Some(700_000)).unwrap();
        assert!(spool.download("short", &mut &first[..100], Some(101)).is_err());
        assert!(
            spool
                .download("long", &mut &first[..], Some(u64::MAX))
                .unwrap_err()
                .to_string()
                .contains("TMPDIR")
        );
        let b = spool.download("b", &mut &second[..], None).unwrap();
        assert_eq!((a.len_bytes, b.len_bytes), (700_000, 700_000));
        for (object, bytes) in [(&a, &first), (&b, &second)] {
            for range in [0..700_000, 5..6, 32_768..699_999, 7..7] {
                let read = object.read(&range, 32 << 10).unwrap();
                assert!(read.iter().all(|piece| piece.len() <= 32 << 10));
                assert!(read.concat() == bytes[range.start as usize..range.end as usize]);
            }
        }
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "the file has no name");
    }

    #[test]
    fn an_object_that_is_closed_takes_no_space() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Arc::new(Spool::create(folder.path(), |_| {}));
        let taken =
            || std::os::unix::fs::MetadataExt::blocks(&spool.file().unwrap().metadata().unwrap()) * 512;
        let bytes = vec![1; 1 << 20];
        let [a, b] = ["a", "b"].map(|name| spool.download(name, &mut &bytes[..], None).unwrap());
        assert!(taken() >= 2 << 20, "{}", taken());
        drop(a);
        assert!(taken() < 3 << 19, "{}", taken());
        assert!(b.read(&(0..1 << 20), 1 << 20).unwrap().concat() == bytes);
        drop(b);
        assert!(taken() < 1 << 19, "{}", taken());
    }

    #[test]
    fn a_folder_that_takes_no_file_is_named() {
        let spool = Arc::new(Spool::create(Path::new("/nonexistent"), |_| {}));
        let error = spool.download("a", &mut &b"a"[..], None).unwrap_err().to_string();
        assert!(error.contains("in '/nonexistent': No such file") && error.contains("TMPDIR"), "{error}");
    }
}
