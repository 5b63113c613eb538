//! The file that an archive is in, or its parts in two files: read by blocks while it is parsed, and at any position when contents
//! are read.

use super::fault::refused;
use super::parts::Parts;
use crate::{BuildError, Result};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Headers and data come in blocks of this many bytes.
pub const BLOCK_BYTES: usize = 512;

/// Length of a member, and of all files together, at most: 128 TiB. A header of some bytes can claim any length.
pub const LEN_BYTES_MAX: u64 = 1 << 47;
/// Bytes in which something after the end of an archive is searched for, and of one read of them.
const SEARCHED_BYTES: u64 = 64 << 20;
const SEARCH_BYTES: usize = 64 << 10;

/// A block.
pub type Block = [u8; BLOCK_BYTES];

/// An archive that contents are read from.
#[derive(Debug)]
pub struct Archive {
    medium: Medium,
    /// For messages.
    path: PathBuf,
}

#[derive(Debug)]
enum Medium {
    /// A file, with its length and the time of its last change when it was opened.
    File(File, (u64, (i64, i64))),
    /// Parts in files that only this process writes.
    Parts(Parts),
}

impl Archive {
    /// Takes the file that the archive is in.
    pub fn new(file: File, path: &Path) -> Result<Self> {
        let opened = identity(&file).map_err(|e| BuildError::source(path, e))?;
        Ok(Archive { medium: Medium::File(file, opened), path: path.into() })
    }

    /// Takes the parts of the archive.
    pub fn of_parts(parts: Parts, path: &Path) -> Self {
        Archive { medium: Medium::Parts(parts), path: path.into() }
    }

    /// Length, bytes.
    pub fn len_bytes(&self) -> u64 {
        match &self.medium {
            Medium::File(_, opened) => opened.0,
            Medium::Parts(parts) => parts.len_bytes,
        }
    }

    /// Fills `buf` with the bytes from `at` on, which lie within the archive.
    pub fn read_exact_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let read = match &self.medium {
            Medium::File(file, _) => file.read_exact_at(buf, at),
            Medium::Parts(parts) => parts.read_exact_at(buf, at),
        };
        read.map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => self.changed(),
            _ => BuildError::source(&self.path, e),
        })
    }

    /// The position in the image of the contents of a member, if they lie there.
    pub fn in_image(&self, at: u64, len_bytes: u64) -> Option<u64> {
        match &self.medium {
            Medium::File(..) => None,
            Medium::Parts(parts) => parts.in_image(at, len_bytes),
        }
    }

    /// The position of the first byte from `at` on that is in no hole; `None`: there is none. A file system that does not
    /// tell has no holes.
    fn data_from(&self, at: u64) -> Option<u64> {
        let Medium::File(file, _) = &self.medium else { return Some(at) };
        match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => Some(data),
            Err(Errno::NXIO) => None,
            Err(_) => Some(at),
        }
    }

    /// Fails if the archive has changed since it was opened.
    pub fn check(&self) -> Result<()> {
        let Medium::File(file, opened) = &self.medium else { return Ok(()) };
        let now = identity(file).map_err(|e| BuildError::source(&self.path, e))?;
        if now == *opened { Ok(()) } else { Err(self.changed()) }
    }

    /// The error of a reader that goes beyond a file; the builder never does.
    pub fn past_the_end(&self) -> BuildError {
        BuildError::source(&self.path, io::ErrorKind::UnexpectedEof.into())
    }

    fn changed(&self) -> BuildError {
        BuildError::Changed { path: self.path.clone() }
    }
}

fn identity(file: &File) -> io::Result<(u64, (i64, i64))> {
    let metadata = file.metadata()?;
    Ok((metadata.len(), (metadata.mtime(), metadata.mtime_nsec())))
}

/// A position in an archive that is parsed.
pub struct Cursor<'a> {
    archive: &'a Archive,
    at: u64,
}

impl<'a> Cursor<'a> {
    /// Begins at the first byte.
    pub fn new(archive: &'a Archive) -> Self {
        Cursor { archive, at: 0 }
    }

    /// The position, bytes from the beginning.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Reads the next block. An archive that ends here is cut off.
    pub fn block(&mut self) -> Result<Block> {
        self.check_left(BLOCK_BYTES as u64)?;
        let mut block = [0; BLOCK_BYTES];
        self.archive.read_exact_at(&mut block, self.at)?;
        self.at += BLOCK_BYTES as u64;
        Ok(block)
    }

    /// Whether there is a whole block.
    pub fn has_block(&self) -> bool {
        self.check_left(BLOCK_BYTES as u64).is_ok()
    }

    /// Reads `len_bytes` and passes over the padding after them. The caller limits the length.
    pub fn payload(&mut self, len_bytes: u64) -> Result<Vec<u8>> {
        let start = self.at;
        self.skip(len_bytes)?;
        let mut bytes = vec![0; len_bytes as usize];
        self.archive.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }

    /// Passes over `len_bytes` and the padding after them.
    pub fn skip(&mut self, len_bytes: u64) -> Result<()> {
        if len_bytes > LEN_BYTES_MAX {
            return Err(refused(format!("its header claims {len_bytes} bytes; up to 2^47")));
        }
        let padded = len_bytes.next_multiple_of(BLOCK_BYTES as u64);
        self.check_left(padded)?;
        self.at += padded;
        Ok(())
    }

    /// Passes over blocks of zeroes: over a hole, or else over 64 KiB at most.
    pub fn pass_zeroes(&mut self) -> Result<()> {
        let end = self.archive.len_bytes();
        let data = self.archive.data_from(self.at).map_or(end, |data| data.min(end));
        if data > self.at {
            self.at = data - data % BLOCK_BYTES as u64;
            return Ok(());
        }
        let mut piece = vec![0; self.left_bytes().min(SEARCH_BYTES as u64) as usize];
        self.archive.read_exact_at(&mut piece, self.at)?;
        let zeroes = piece.iter().position(|&byte| byte != 0).unwrap_or(piece.len());
        self.at += (zeroes - zeroes % BLOCK_BYTES) as u64;
        Ok(())
    }

    /// The position of the first byte that is not 0, from here on; `None`: there is none in the first 64 MiB. Reads no
    /// more than that, because a sparse file can be long.
    pub fn find_nonzero(&self) -> Result<Option<u64>> {
        let end = self.archive.len_bytes().min(self.at.saturating_add(SEARCHED_BYTES));
        let (mut at, mut buffer) = (self.at, vec![0; SEARCH_BYTES]);
        while at < end {
            let piece = &mut buffer[..(end - at).min(SEARCH_BYTES as u64) as usize];
            self.archive.read_exact_at(piece, at)?;
            if let Some(found) = piece.iter().position(|&byte| byte != 0) {
                return Ok(Some(at + found as u64));
            }
            at += piece.len() as u64;
        }
        Ok(None)
    }

    /// Whether a member of `len_bytes` could end after its padding: at the end of the archive, or at a block that
    /// `is_boundary` accepts.
    pub fn is_boundary_after(&self, len_bytes: u64, is_boundary: fn(&Block) -> bool) -> Result<bool> {
        let mut next = Cursor { archive: self.archive, at: self.at };
        if next.skip(len_bytes).is_err() {
            return Ok(false);
        }
        Ok(next.left_bytes() == 0 || next.has_block() && is_boundary(&next.block()?))
    }

    /// Bytes from here to the end.
    pub fn left_bytes(&self) -> u64 {
        self.archive.len_bytes().saturating_sub(self.at)
    }

    fn check_left(&self, len_bytes: u64) -> Result<()> {
        if len_bytes <= self.left_bytes() { Ok(()) } else { Err(cut_off()) }
    }
}

/// The error of an archive that ends within a member.
pub fn cut_off() -> BuildError {
    refused("the archive is cut off here; get it again")
}
