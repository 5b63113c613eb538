//! An archive in two files: contents of its members lie in the image that is built from it, and the rest in another file.

use crate::table::Table;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Consecutive bytes of an archive that lie in one of the files, up to the next part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Part {
    /// First byte in the archive.
    pub start: u64,
    /// First byte in the file.
    pub at: u64,
    /// 1: the file is the image; 0: the other one.
    pub in_image: u64,
}

/// An archive in parts.
#[derive(Debug)]
pub struct Parts {
    /// The file of the image, which begins with its first byte.
    pub image: File,
    /// The file with everything else.
    pub rest: File,
    /// The parts, in the order of the archive. The first one begins at its first byte.
    pub table: Table<Part>,
    /// Length of the archive, bytes.
    pub len_bytes: u64,
}

impl Parts {
    /// Fills `buf` with the bytes from `at` on.
    pub fn read_exact_at(&self, mut buf: &mut [u8], mut at: u64) -> io::Result<()> {
        while !buf.is_empty() {
            let index = self.index(at).ok_or(io::ErrorKind::UnexpectedEof)?;
            let (part, left) = (self.table.get(index), self.end(index) - at);
            let (here, rest) = buf.split_at_mut(left.min(buf.len() as u64) as usize);
            let file = if part.in_image == 1 { &self.image } else { &self.rest };
            file.read_exact_at(here, part.at + (at - part.start))?;
            at += here.len() as u64;
            buf = rest;
        }
        Ok(())
    }

    /// The first bytes, up to so many.
    pub fn beginning(&self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len_bytes.min(len as u64) as usize];
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// The position in the image of `len_bytes` bytes from `at` on, if they lie there as the contents of one member.
    pub fn in_image(&self, at: u64, len_bytes: u64) -> Option<u64> {
        let index = self.index(at)?;
        let part = self.table.get(index);
        let is_all = part.start == at && self.end(index) == at.checked_add(len_bytes)?;
        (part.in_image == 1 && is_all).then_some(part.at)
    }

    /// The part that has a byte.
    fn index(&self, at: u64) -> Option<usize> {
        let after = self.table.partition_point(0..self.table.len(), |part| part.start <= at);
        after.checked_sub(1).filter(|_| at < self.len_bytes)
    }

    /// The first byte after a part.
    fn end(&self, index: usize) -> u64 {
        if index + 1 < self.table.len() { self.table.get(index + 1).start } else { self.len_bytes }
    }
}
