//! Ends of extents at given positions: where another file refers to what follows.
//!
//! An index has one entry for each logical block, so two extents cannot begin in the same block of the file, and the length
//! of a cluster of several blocks needs a second entry. Data that does not compress is stored in plain extents of exactly
//! a block, which cannot end everywhere; then the last two of them and the rest are one cluster. Where that is impossible,
//! the position is passed over, and a file that refers to it stores the bytes again.

use super::segment::{BLOCK, Cutter};
use crate::build::BuildError;
use pagefold_codec::cluster::encode::{Encoder, Fit};

impl Cutter<'_> {
    /// Stores extents up to byte `end` of the segment, so that the last one ends there. If that is impossible, the last
    /// one ends before, at most two blocks.
    pub(super) fn go_to_cut(&mut self, end: usize, encoder: &mut Encoder) -> Result<(), BuildError> {
        while self.at < end && self.step_towards(end, encoder)? {}
        Ok(())
    }

    /// Stores the next extent, which does not end behind `end`. Returns false if then none could end there.
    fn step_towards(&mut self, end: usize, encoder: &mut Encoder) -> Result<bool, BuildError> {
        let left = end - self.at;
        if left < BLOCK {
            return Ok(false);
        }
        let fit = encoder.fit(&self.src[self.at..end], &mut self.cluster)?;
        if !is_gain(fit) {
            return self.step_plain(end, fit.consumed_bytes, encoder);
        }
        let behind = left - fit.consumed_bytes;
        let is_storable = behind == 0 || behind == BLOCK || behind >= 2 * BLOCK;
        if is_storable {
            self.push_fit(fit);
            return Ok(true);
        }
        // One block or two behind it can be stored in any case.
        let shorter = left.saturating_sub(behind.next_multiple_of(BLOCK));
        let fit = encoder.fit(&self.src[self.at..self.at + shorter], &mut self.cluster)?;
        if is_gain(fit) {
            self.push_fit(fit);
            return Ok(true);
        }
        self.step_plain(end, BLOCK, encoder)
    }

    /// Stores up to `len_bytes` that do not compress, but at least a block.
    fn step_plain(
        &mut self,
        end: usize,
        len_bytes: usize,
        encoder: &mut Encoder,
    ) -> Result<bool, BuildError> {
        let left = end - self.at;
        let most = match left % BLOCK {
            0 => left / BLOCK,
            _ if left > 3 * BLOCK => left / BLOCK - 2,
            _ => return self.step_last(end, encoder),
        };
        for _ in 0..(len_bytes / BLOCK).clamp(1, most) {
            self.push_plain_block(BLOCK);
        }
        Ok(true)
    }

    /// Stores one block or two that do not compress, and a part of another.
    fn step_last(&mut self, end: usize, encoder: &mut Encoder) -> Result<bool, BuildError> {
        let left = end - self.at;
        // The rest needs a block of the file in which it begins.
        let has_block = (self.position() + left as u64) % BLOCK as u64 <= self.position() % BLOCK as u64;
        if has_block {
            while self.at < end {
                self.push_plain_block((end - self.at).min(BLOCK));
            }
            return Ok(true);
        }
        // Linux decodes clusters that have no more blocks than the pages which they decode to.
        let blocks = left.div_ceil(BLOCK);
        if blocks < 3 || self.cluster.len() < blocks * BLOCK {
            return Ok(false);
        }
        let fit = encoder.fit(&self.src[self.at..end], &mut self.cluster[..blocks * BLOCK])?;
        let is_whole = fit.consumed_bytes == left;
        if is_whole {
            self.push_fit(fit);
        }
        Ok(is_whole)
    }

    fn push_fit(&mut self, fit: Fit) {
        self.push_cluster(fit.written_bytes.div_ceil(BLOCK), fit.consumed_bytes, fit.written_bytes);
    }
}

/// Whether a cluster takes fewer blocks than its contents.
fn is_gain(fit: Fit) -> bool {
    fit.consumed_bytes > fit.written_bytes.div_ceil(BLOCK) * BLOCK
}
