//! [`StateText`]: reads of `block_state`, whose text may be larger than the memory of this machine.

use crate::disks::{Disks, Errno};

/// The text of an open `block_state`: the piece that the disk returned last, and where it goes on.
#[derive(Default)]
pub struct StateText {
    /// Offset of the next byte in the file.
    offset: u64,
    piece: Vec<u8>,
    /// Bytes of the piece that were read.
    taken: usize,
    /// The first page after the piece; `None` at the end.
    next: Option<u64>,
}

impl StateText {
    /// Reads at most `len` bytes at `offset`: at the beginning, or where the last read ended. The kernel's file too is
    /// only read from the beginning to the end, because its offset counts pages.
    pub fn read(
        &mut self,
        disks: &dyn Disks,
        number: u32,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, Errno> {
        if offset == 0 {
            *self = StateText { next: Some(0), ..StateText::default() };
        } else if offset != self.offset {
            return Err(Errno(libc::EINVAL));
        }
        while self.taken == self.piece.len()
            && let Some(first) = self.next
        {
            let (lines, next) = disks.block_state(number, first)?;
            (self.piece, self.taken, self.next) = (lines.into_bytes(), 0, next);
        }
        let end = self.taken.saturating_add(len).min(self.piece.len());
        let bytes = self.piece[self.taken..end].to_vec();
        self.taken = end;
        self.offset += bytes.len() as u64;
        Ok(bytes)
    }
}
