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
    file: File,
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
    /// Makes an unnamed file in a folder.
    pub fn create(folder: &Path, note: fn(&str)) -> io::Result<Self> {
        use rustix::fs::{Mode, OFlags, open};
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(open(folder, flags, Mode::RUSR | Mode::WUSR)?);
        Ok(Spool { file, folder: folder.to_path_buf(), end: Mutex::default(), note })
    }

    /// Downloads the object `name`: all that the reader has, which is `len_bytes` if the server says so.
    pub(crate) fn download(
        self: &Arc<Self>,
        name: &str,
        reader: &mut dyn Read,
        len_bytes: Option<u64>,
    ) -> Result<SpooledObject, RemoteError> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let failed =
            |what: String| RemoteError::Connection { what: format!("downloading the whole object: {what}") };
        let free = rustix::fs::fstatvfs(&self.file).map_err(|e| failed(e.to_string()))?;
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
            self.file
                .write_all_at(bytes, at)
                .map_err(|e| failed(format!("'{}': {e}", self.folder.display())))?;
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
            let read = self.spool.file.read_exact_at(&mut bytes, self.start + start);
            read.map(|()| bytes)
                .map_err(|e| RemoteError::Connection { what: format!("the downloaded object: {e}") })
        };
        starts.map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_back_and_broken_ones_refused() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Arc::new(Spool::create(folder.path(), |_| {}).unwrap());
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
}
