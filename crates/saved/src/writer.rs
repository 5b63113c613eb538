//! [`Writer`]: writes a saved disk in order.

use crate::block::{BLOCK_LEN, ENTRIES_MAX, ENTRY_LEN, FRAME_LEN, FrameKind, PageForm, entry, seal};
use crate::header::Header;
use crate::index::{LEAF_RUNS, OFFSET_MAX, Run, leaf, root};
use crate::output::Output;
use crate::trailer::{TRAILER_LEN, Totals, Trailer, count};
use std::io;

/// Writes the pages of a saved disk, in any order, each once.
///
/// It needs memory for one block, and for the index: 32 bytes for each run of consecutive pages, at most one run for each
/// page.
pub struct Writer<O> {
    output: O,
    id: [u8; 16],
    /// Where the next frame begins.
    offset: u64,
    sequence: u64,
    /// The table and the bytes of the present block.
    table: Vec<u8>,
    payload: Vec<u8>,
    runs: Vec<Run>,
    totals: Totals,
}

impl<O: Output> Writer<O> {
    /// Writes the header.
    pub fn new(mut output: O, header: &Header) -> io::Result<Self> {
        let bytes = header.encode();
        let offset = bytes.len() as u64;
        output.put(bytes)?;
        Ok(Writer {
            output,
            id: header.id,
            offset,
            sequence: 0,
            table: Vec::with_capacity(BLOCK_LEN),
            payload: Vec::with_capacity(BLOCK_LEN),
            runs: Vec::new(),
            totals: Totals::default(),
        })
    }

    /// Adds a page of the disk, which was not added before.
    pub fn add(&mut self, page: u64, form: PageForm<'_>) -> io::Result<()> {
        let len = FRAME_LEN + self.table.len() + ENTRY_LEN + self.payload.len() + form.payload_len();
        if len > BLOCK_LEN || self.table.len() >= ENTRIES_MAX * ENTRY_LEN {
            self.end_block()?;
        }
        let at = (self.table.len() / ENTRY_LEN) as u64;
        self.table.extend_from_slice(&entry(page, &form).to_le_bytes());
        match form {
            PageForm::Compressed { bytes, .. } => self.payload.extend_from_slice(bytes),
            PageForm::Raw(page) => self.payload.extend_from_slice(page),
            PageForm::SameFilled(word) => self.payload.extend_from_slice(&word.to_le_bytes()),
            PageForm::Lost => {}
        }
        count(&mut self.totals, &form);
        let offset = self.offset;
        if !self.runs.last_mut().is_some_and(|run| run.extend(page, offset, at)) {
            self.runs.push(Run { page, count: 1, offset, entry: at });
        }
        Ok(())
    }

    /// The totals so far; the length is that of the blocks that are complete.
    pub fn totals(&self) -> Totals {
        Totals { len_bytes: self.offset, ..self.totals }
    }

    fn end_block(&mut self) -> io::Result<()> {
        let count = self.table.len() / ENTRY_LEN;
        if count == 0 {
            return Ok(());
        }
        let mut frame = self.output.buffer();
        frame.clear();
        frame.resize(FRAME_LEN, 0);
        frame.extend_from_slice(&self.table);
        frame.extend_from_slice(&self.payload);
        self.table.clear();
        self.payload.clear();
        self.put_frame(frame, FrameKind::Pages, count)
    }

    fn put_frame(&mut self, mut frame: Vec<u8>, kind: FrameKind, count: usize) -> io::Result<()> {
        seal(&mut frame, kind, count, self.sequence);
        self.sequence += 1;
        self.offset += frame.len() as u64;
        if self.offset > OFFSET_MAX {
            return Err(io::Error::from_raw_os_error(27)); // EFBIG
        }
        self.output.put(frame)
    }

    /// Writes the index and the trailer. Returns the totals, and the output, to which all bytes were written.
    pub fn finish(mut self) -> io::Result<(Totals, O)> {
        self.end_block()?;
        let mut runs = std::mem::take(&mut self.runs);
        runs.sort_unstable();
        let mut leaves = Vec::new();
        for part in runs.chunks(LEAF_RUNS) {
            leaves.push((part[0].page, self.offset));
            self.put_frame(leaf(part), FrameKind::Leaf, part.len())?;
        }
        let root_offset = self.offset;
        self.put_frame(root(&leaves), FrameKind::Root, leaves.len())?;
        let digest = self.output.digest()?;
        let len_bytes = self.offset + TRAILER_LEN as u64;
        let totals = Totals { len_bytes, digest, ..self.totals };
        let trailer = Trailer { totals, root_offset, id: self.id };
        self.output.put(trailer.encode().to_vec())?;
        self.output.end()?;
        Ok((totals, self.output))
    }
}
