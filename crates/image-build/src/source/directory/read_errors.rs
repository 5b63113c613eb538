//! Files whose contents cannot be read, though they can be opened: of a damaged disk, or of a mount of damaged data.
//!
//! Which files these are shows while the image is built. So their contents have zeroes in place of the bytes that cannot be
//! read, and are noted here; the caller then keeps the image, or leaves the files out and builds it again. A file is read
//! several times: bytes that could not be read once are zeroes from then on.

use pagefold_sys::SysError;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The treatment of files and directories that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unreadables {
    /// They end the scan or the build.
    #[default]
    Fail,
    /// They are left out.
    LeaveOut,
    /// Files whose contents cannot be read stay, with zeroes in place of the bytes that cannot be read. Files that cannot
    /// even be opened are left out.
    Zeroes,
}

/// Whether an error is a fault of this machine at this time, and says nothing about the file. It ends the build always.
pub(super) fn is_of_machine(error: &SysError) -> bool {
    error.is_exhaustion() || error.errno == libc::EINTR
}

/// Bytes that are read or zeroed together: the kernel reads pages.
const BLOCK_BYTES: u64 = 4096;
/// Most ranges of a file that are remembered. In a file with more all bytes after them count as unreadable.
const RANGES_MAX: usize = 1 << 16;

/// The files of which bytes could not be read, by path.
#[derive(Debug, Default)]
pub(super) struct ReadErrors {
    treatment: Unreadables,
    has_some: AtomicBool,
    files: Mutex<BTreeMap<Box<[u8]>, FileErrors>>,
}

/// The bytes of a file that could not be read.
#[derive(Debug)]
pub(super) struct FileErrors {
    /// The first error.
    pub reason: String,
    /// Bytes that count as zeroes: the starts of ranges, with their ends.
    ranges: BTreeMap<u64, u64>,
    /// Whether the tree has been changed because of them.
    pub is_settled: bool,
}

impl FileErrors {
    /// Number of bytes that are zeroes because they could not be read.
    pub fn zero_bytes(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// The first range that ends after a position.
    fn next(&self, at: u64) -> Option<Range<u64>> {
        let before = self.ranges.range(..=at).next_back().filter(|(_, end)| **end > at);
        before.or_else(|| self.ranges.range(at..).next()).map(|(start, end)| *start..*end)
    }

    /// Adds a range, up to the end. Those that begin in it become part of it, so that no byte counts twice.
    fn add(&mut self, mut range: Range<u64>) {
        while let Some((start, end)) =
            self.ranges.range(range.start + 1..range.end.max(range.start + 1)).next()
        {
            let (start, end) = (*start, *end);
            range.end = range.end.max(end);
            self.ranges.remove(&start);
        }
        let last = self.ranges.range_mut(..=range.start).next_back();
        match last.filter(|(_, end)| **end >= range.start) {
            Some((_, end)) => *end = range.end.max(*end),
            None => _ = self.ranges.insert(range.start, range.end),
        }
    }
}

impl ReadErrors {
    pub fn new(treatment: Unreadables) -> Self {
        ReadErrors { treatment, ..ReadErrors::default() }
    }

    /// Whether errors are noted, and do not end the build.
    pub fn are_noted(&self) -> bool {
        self.treatment != Unreadables::Fail
    }

    /// Whether something of this file could not be read.
    pub fn has(&self, path: &[u8]) -> bool {
        self.has_some.load(Ordering::Acquire) && self.files().contains_key(path)
    }

    /// The treatment of what cannot be read.
    pub fn treatment(&self) -> Unreadables {
        self.treatment
    }

    /// The files that were noted.
    pub fn noted(&self) -> MutexGuard<'_, BTreeMap<Box<[u8]>, FileErrors>> {
        self.files()
    }

    /// Notes that nothing of a file of `len_bytes` can be read.
    pub fn add_whole(&self, path: &[u8], len_bytes: u64, reason: &dyn std::fmt::Display) {
        self.add(path, 0..len_bytes, len_bytes, reason);
    }

    /// Fills `buf` with the bytes of a file of `len_bytes` from `start` on, which `read` returns, and with zeroes in place of
    /// those that it fails to return. Fails if the machine is at fault.
    pub fn read(
        &self,
        path: &[u8],
        len_bytes: u64,
        buf: &mut [u8],
        start: u64,
        mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    ) -> io::Result<()> {
        let end = start + buf.len() as u64;
        let mut at = start;
        while at < end {
            let bad = self.files().get(path).and_then(|file| file.next(at));
            let is_bad = bad.as_ref().is_some_and(|bad| bad.contains(&at));
            let block_end = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
            let stop = match bad {
                Some(bad) if is_bad => bad.end,
                Some(bad) => bad.start.min(block_end),
                None => block_end,
            }
            .min(end);
            let piece = &mut buf[(at - start) as usize..(stop - start) as usize];
            if is_bad {
                piece.fill(0);
                at = stop;
                continue;
            }
            match read(piece, at) {
                Ok(0) => {
                    let reason = format!("it ends at byte {at}, before its length of {len_bytes} bytes");
                    self.add(path, at..len_bytes, len_bytes, &reason);
                }
                Ok(len) => at += len as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if is_of_machine(&SysError::io("reading", &e)) => return Err(e),
                Err(e) => self.add(path, at..block_end, len_bytes, &e),
            }
        }
        Ok(())
    }

    fn add(&self, path: &[u8], range: Range<u64>, len_bytes: u64, reason: &dyn std::fmt::Display) {
        let mut files = self.files();
        let file = files.entry(path.into()).or_insert_with(|| FileErrors {
            reason: reason.to_string(),
            ranges: BTreeMap::new(),
            is_settled: false,
        });
        // Nobody will see the other bytes of a file that is left out.
        let is_last = self.treatment == Unreadables::LeaveOut || file.ranges.len() >= RANGES_MAX;
        let end = if is_last { len_bytes } else { range.end.min(len_bytes) };
        file.add(range.start..end.max(range.start + 1));
        self.has_some.store(true, Ordering::Release);
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<Box<[u8]>, FileErrors>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 20_000;

    fn byte(at: u64) -> u8 {
        (at % 251 + 1) as u8
    }

    /// Reads a file of which a range cannot be read, and which ends early.
    fn read(buf: &mut [u8], at: u64, bad: &Range<u64>, end: u64) -> io::Result<usize> {
        let readable = if at < bad.start { bad.start.min(end) } else { end };
        match bad.contains(&at) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => {
                let len = buf.len().min(readable.saturating_sub(at) as usize);
                (0..len).for_each(|n| buf[n] = byte(at + n as u64));
                Ok(len)
            }
        }
    }

    #[test]
    fn bytes_that_cannot_be_read_are_zeroes_and_stay_so() {
        let errors = ReadErrors::new(Unreadables::Zeroes);
        let wanted: Vec<u8> = (0..LEN)
            .map(|at| if (8192..12_288).contains(&at) || at >= 17_000 { 0 } else { byte(at) })
            .collect();
        // The second time everything can be read.
        for (bad, end) in [(8192..12_288, 17_000), (0..0, LEN)] {
            for (start, len) in [(0, LEN), (9000, 100), (8000, 5000), (16_999, 2), (1, 1)] {
                let mut buf = vec![9; len as usize];
                errors.read(b"f", LEN, &mut buf, start, |buf, at| read(buf, at, &bad, end)).unwrap();
                assert!(buf == wanted[start as usize..(start + len) as usize], "{start} {len}");
            }
        }
        let files = errors.noted();
        assert_eq!((files.len(), files[&b"f"[..]].zero_bytes()), (1, 4096 + 3000));
        assert!(files[&b"f"[..]].reason.contains("Input/output error"));
    }

    #[test]
    fn a_file_that_is_left_out_is_not_read_on() {
        let errors = ReadErrors::new(Unreadables::LeaveOut);
        let mut buf = vec![9; LEN as usize];
        let mut calls = 0;
        let read_all = errors.read(b"f", LEN, &mut buf, 0, |buf, at| {
            calls += 1;
            read(buf, at, &(4096..8192), LEN)
        });
        read_all.unwrap();
        assert!(
            calls == 2 && errors.has(b"f") && !errors.has(b"g") && buf[4096..].iter().all(|byte| *byte == 0)
        );
    }

    #[test]
    fn no_byte_counts_twice() {
        let errors = ReadErrors::new(Unreadables::Zeroes);
        let read_at = |start: u64, len: usize| {
            let fails = |_: &mut [u8], _| Err(io::Error::from_raw_os_error(libc::EIO));
            errors.read(b"f", LEN, &mut vec![9; len], start, fails).unwrap();
        };
        for (start, len) in [(6000, 10), (4096, 10), (12_300, 1), (8000, 10_000)] {
            read_at(start, len);
        }
        assert_eq!(errors.noted()[&b"f"[..]].zero_bytes(), LEN - 4096);
    }

    #[test]
    fn faults_of_the_machine_are_none_of_the_file() {
        let errors = ReadErrors::new(Unreadables::LeaveOut);
        let fails = |_: &mut [u8], _| Err(io::Error::from_raw_os_error(libc::ENOMEM));
        assert!(errors.read(b"f", LEN, &mut [9; 10], 0, fails).is_err() && !errors.has(b"f"));
    }
}
