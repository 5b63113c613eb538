//! Writes the contents of an archive to the image while the archive comes, so that they are written once.
//!
//! That is for images that store contents uncompressed and in whole blocks. All other bytes of the archive, some percent, go
//! to a second file; [`Parts`] has both together as the archive, from which the tree is read afterwards.

use super::parts::{Part, Parts};
use super::split::{Piece, Splitter};
use crate::content_hash::ContentHash;
use crate::devices::Geometry;
use crate::options::{BLOCK_BYTES, Options};
use crate::output::{ImageFile, Output};
use crate::table::{Hashes, Spill, Table};
use crate::{BuildError, Result};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of the second file that are written at once.
const REST_BUFFER_BYTES: usize = 256 << 10;
/// Longest file that is compared with those before it, bytes: it is in memory until it is complete.
const COMPARED_BYTES_MAX: u64 = 1 << 20;

/// An image whose first contents are written.
pub struct Begun<'f>(pub(crate) Output<'f>);

/// Writes contents to an image.
pub struct Placing<'f> {
    splitter: Splitter,
    sink: Sink<'f>,
}

struct Sink<'f> {
    output: Output<'f>,
    /// The same file, to compare contents.
    image: File,
    rest: BufWriter<File>,
    rest_bytes: u64,
    table: Table<Part>,
    /// Bytes of the archive so far.
    at: u64,
    /// The contents that are coming.
    current: Current,
    /// Contents of a file that is compared.
    bytes: Vec<u8>,
    /// The first block of contents that were compared, by a hash of these.
    known: Hashes,
}

/// The kind of the bytes that come.
#[derive(Clone, Copy, PartialEq)]
enum Current {
    /// Contents, which `bytes` collects; they began at this byte of the archive.
    Compared { start: u64 },
    /// Contents that are written at once.
    Written,
    /// No contents.
    Rest,
    /// Nothing so far after contents.
    Nothing,
}

impl<'f> Placing<'f> {
    /// Whether contents can be placed in an image with these options.
    pub fn is_possible(options: &Options) -> bool {
        let is_plain = options.compressions().is_empty() && options.form.chunks.is_none();
        is_plain && !options.tail_packing && !options.is_index
    }

    /// Begins an image in `file`, which becomes empty; `image` reads that file, which begins with the image, and `rest` is an
    /// empty file.
    pub fn new(
        options: &Options,
        file: &'f dyn ImageFile,
        image: File,
        rest: File,
        spill: &Spill,
    ) -> Result<Self> {
        options.check()?;
        if !Self::is_possible(options) {
            return Err(BuildError::Options { what: "such contents are not placed in advance".into() });
        }
        file.set_len(0).map_err(|source| BuildError::Write { offset: 0, source })?;
        let output = Output::new(file, &Geometry::with_contents(), options.target);
        let sink = Sink {
            output,
            image,
            rest: BufWriter::with_capacity(REST_BUFFER_BYTES, rest),
            rest_bytes: 0,
            table: Table::new(spill),
            at: 0,
            current: Current::Nothing,
            bytes: Vec::new(),
            known: Hashes::new(spill),
        };
        Ok(Placing { splitter: Splitter::new(), sink })
    }

    /// Takes the next bytes of the archive.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Placing { splitter, sink } = self;
        splitter.split(bytes, &mut |piece| sink.put(&piece))
    }

    /// Ends the archive. Returns it, and the image, which [`build_placed`](crate::build_placed) completes.
    pub fn finish(mut self) -> Result<(Parts, Begun<'f>)> {
        // One that is cut off may end in contents.
        self.sink.end()?;
        let Sink { mut output, image, rest, table, at, .. } = self.sink;
        output.flush()?;
        let rest = rest.into_inner().map_err(|e| BuildError::Spool { source: e.into_error() })?;
        Ok((Parts { image, rest, table, len_bytes: at }, Begun(output)))
    }
}

impl Sink<'_> {
    fn put(&mut self, piece: &Piece<'_>) -> Result<()> {
        match *piece {
            Piece::Rest(bytes) => {
                if self.current != Current::Rest {
                    self.table.push(Part { start: self.at, at: self.rest_bytes, in_image: 0 })?;
                    self.current = Current::Rest;
                }
                self.rest.write_all(bytes).map_err(|source| BuildError::Spool { source })?;
                self.rest_bytes += bytes.len() as u64;
                self.at += bytes.len() as u64;
            }
            Piece::Begin(len_bytes) if len_bytes <= COMPARED_BYTES_MAX => {
                self.bytes.clear();
                self.current = Current::Compared { start: self.at };
            }
            Piece::Begin(_) => {
                let at = self.output.next_block() * BLOCK;
                self.table.push(Part { start: self.at, at, in_image: 1 })?;
                self.current = Current::Written;
            }
            Piece::Contents(bytes) => {
                self.at += bytes.len() as u64;
                match self.current {
                    Current::Written => self.output.append(bytes)?,
                    _ => self.bytes.extend_from_slice(bytes),
                }
            }
            Piece::End => self.end()?,
        }
        Ok(())
    }

    /// Ends contents.
    fn end(&mut self) -> Result<()> {
        match self.current {
            Current::Compared { start } if !self.bytes.is_empty() => {
                let block = self.place()?;
                self.table.push(Part { start, at: block * BLOCK, in_image: 1 })?;
            }
            Current::Written => self.output.pad()?,
            _ => return Ok(()),
        }
        self.current = Current::Nothing;
        Ok(())
    }

    /// Writes the contents of a file that is compared, unless they are there. Returns their first block.
    fn place(&mut self) -> Result<u64> {
        let mut hash = ContentHash::new();
        hash.write(&self.bytes);
        let hash = hash.finish();
        let next = self.output.next_block();
        let key = Hashes::key_of((hash >> 64) as u64, hash as u64);
        if let Some(block) = self.known.get_or_insert(&key, next)?
            && self.has(block)?
        {
            return Ok(block);
        }
        self.output.append(&self.bytes)?;
        self.output.pad()?;
        Ok(next)
    }

    /// Whether the image has these contents from a block on. Equal hashes do not prove it.
    fn has(&mut self, block: u64) -> Result<bool> {
        let start = block * BLOCK;
        self.output.flush_up_to(start + self.bytes.len() as u64)?;
        let mut found = vec![0; self.bytes.len()];
        Ok(self.image.read_exact_at(&mut found, start).is_ok() && found == self.bytes)
    }
}
