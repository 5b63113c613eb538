//! Contents in order, with zeroes where the file has holes.

use crate::Result;
use crate::compress::buffers::Buffer;
use crate::content::{RangeReader, Reader};
use crate::content_hash::ContentHash;
use std::ops::Range;

/// Bytes that are read at once to hash what is passed over.
const STEP_BYTES: usize = 1 << 20;

/// Contents whose holes are filled with zeroes.
pub struct Filled<'r> {
    reader: &'r dyn Reader,
    data: Option<&'r [Range<u64>]>,
    at: u64,
    hash: Option<ContentHash>,
}

impl<'r> Filled<'r> {
    pub fn new(reader: &'r dyn Reader, data: Option<&'r [Range<u64>]>, has_digest: bool) -> Self {
        Filled { reader, data, at: 0, hash: has_digest.then(ContentHash::new) }
    }

    /// The hash of what was read, if it is wanted.
    pub fn digest(self) -> Option<u128> {
        self.hash.map(|hash| hash.finish())
    }

    /// Reads the next `len` bytes into a buffer, whose contents are replaced.
    pub fn read(&mut self, len: usize, mut bytes: Buffer) -> Result<Buffer> {
        bytes.set_len(len);
        let mut done = 0;
        while done < len {
            let left = (len - done) as u64;
            let (is_data, run) = self.run();
            let now = run.min(left) as usize;
            match is_data {
                true => self.reader.read_exact_at(&mut bytes[done..done + now], self.at)?,
                false => bytes[done..done + now].fill(0),
            }
            done += now;
            self.at += now as u64;
        }
        if let Some(hash) = &mut self.hash {
            hash.write(&bytes);
        }
        Ok(bytes)
    }

    /// Passes over the next bytes, and returns a reader of them for another thread, if they need not be read here.
    pub fn range(&mut self, len: usize) -> Option<Box<dyn RangeReader>> {
        let (is_data, run) = self.run();
        if self.hash.is_some() || !is_data || run < len as u64 {
            return None;
        }
        let range = self.reader.range(self.at)?;
        self.at += len as u64;
        Some(range)
    }

    /// Goes to a byte after the present one, without reading and hashing what is before it.
    pub fn seek(&mut self, at: u64) {
        self.at = at;
    }

    /// Passes over the next bytes. They are read if the hash is wanted; then it returns the hash of these bytes.
    /// `on_step` is called for each MiB that is read.
    pub fn skip(&mut self, len_bytes: u64, mut on_step: impl FnMut() -> Result<()>) -> Result<Option<u128>> {
        if self.hash.is_some() {
            let (mut bytes, mut hash) = (Buffer::default(), ContentHash::new());
            for start in (0..len_bytes).step_by(STEP_BYTES) {
                bytes = self.read((len_bytes - start).min(STEP_BYTES as u64) as usize, bytes)?;
                hash.write(&bytes);
                on_step()?;
            }
            return Ok(Some(hash.finish()));
        }
        self.at += len_bytes;
        Ok(None)
    }

    /// Whether the next bytes are data, and how many are alike.
    fn run(&self) -> (bool, u64) {
        let Some(ranges) = self.data else { return (true, u64::MAX) };
        match ranges.get(ranges.partition_point(|range| range.end <= self.at)) {
            Some(range) if range.start <= self.at => (true, range.end - self.at),
            Some(range) => (false, range.start - self.at),
            None => (false, u64::MAX),
        }
    }
}
