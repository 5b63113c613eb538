//! A codec for pages of numbers of a fixed width: integers, times, categories, floats.
//!
//! The numbers of such a page are near each other, and LZ4 finds few bytes that repeat. This codec subtracts the lowest one
//! from all (frame of reference), or each one from that 64 bytes after it, removes the zero bits that all have at the end,
//! and packs the rest in as many bits as the largest needs. That takes a fraction of LZ4's time both ways. All other pages
//! are LZ4 blocks, and so are sources that are not whole pages.
//!
//! It does not know where numbers begin and end: it looks at a page as lanes of 1, 2, 4 and 8 bytes, and takes those that
//! need the fewest bits. There are no exceptions: one far number widens all numbers of its page.
//!
//! The choice (`compress_page`) is made so that pages of programs cost little more time than with `lz4` alone: an eighth of a page
//! shows whether packing is worth a closer look. LZ4 is not tried if a sample of the words (`repeats`) shows that it
//! cannot be better.
//!
//! `lane` has the lanes, `format` the header, `analyze` finds the width, `pack` and `unpack` are the loops, which are compiled
//! for several instruction sets. Format: `docs/formats/numbers.md`.

mod analyze;
mod format;
mod lane;
mod pack;
mod repeats;
#[cfg(test)]
mod tests;
mod unpack;

use crate::backend::{Backend, COMPRESS_BUF_LEN, Stream};
use crate::error::CodecError;
use crate::isa::{Isa, dispatch};
use crate::lz4::{Lz4, Lz4Stream};
use format::{HEADER_LEN_MAX, Plan};
use lane::RowBytes;
use pagefold_page::{PAGE_SIZE, Page};

const NAME: &str = "numbers";

pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    summary: "packs integers, times and floats; lz4 for other pages",
    levels: None,
    dictionary: false,
    window_bits: false,
    in_zram: false,
    open: |_| Ok(Box::new(|| Ok(Box::new(NumbersStream::new()?)))),
};

/// A page is looked at closely if a sample of its numbers needs at most so many of 256 of their bits.
const CLOSER_LOOK: usize = 170;
/// Differences are tried only if neither the numbers as they are nor LZ4 take so few bytes.
const DELTA_LEN_MIN: usize = 768;
/// LZ4 blocks of at least this length do not save enough; those of less need no comparison with numbers that a sample
/// showed to be wide.
const LZ4_POOR_LEN: usize = PAGE_SIZE - PAGE_SIZE / 16;

struct NumbersStream {
    lz4: Lz4Stream,
    isa: Isa,
}

impl Stream for NumbersStream {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let dst_len_bytes = dst.len();
        let result = match (src.try_into(), dst.first_chunk_mut()) {
            (Ok(page), Some(dst)) => self.compress_page(page, dst),
            _ => self.lz4.compress(src, dst),
        };
        result.map_err(|_| CodecError::Compress { codec: NAME, dst_len_bytes })
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let corrupt = CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() };
        if !Plan::is_packed(src) {
            return self.lz4.decompress(src, dst).map_err(|_| corrupt);
        }
        match (Plan::read(src), dst.first_chunk_mut()) {
            (Some((plan, first_row, payload)), Some(page)) => {
                self.isa.unpack(plan, &first_row, payload, page);
                Ok(PAGE_SIZE)
            }
            _ => Err(corrupt),
        }
    }
}

impl NumbersStream {
    fn new() -> Result<Self, CodecError> {
        Ok(NumbersStream { lz4: Lz4::new(1, None)?.open()?, isa: Isa::detect() })
    }

    fn compress_page(&mut self, page: &Page, dst: &mut [u8; COMPRESS_BUF_LEN]) -> Result<usize, CodecError> {
        let (lane_log, share) = narrowest(self.isa.estimate(page));
        let mut likely = None;
        if share <= CLOSER_LOOK {
            let lz4_len_min = repeats::lz4_len_min(page);
            let plan = self.plan(page, lane_log, lz4_len_min);
            if plan.len() <= lz4_len_min {
                return Ok(self.pack(page, plan, dst));
            }
            likely = Some(plan);
        }
        let lz4_len = self.lz4.compress(page, dst)?;
        let plan = match likely {
            Some(plan) => plan,
            None if lz4_len < LZ4_POOR_LEN => return Ok(lz4_len),
            None => self.plan(page, lane_log, lz4_len),
        };
        Ok(if plan.len() <= lz4_len.min(PAGE_SIZE) { self.pack(page, plan, dst) } else { lz4_len })
    }

    /// Returns the plan for a lane, or that of its differences if it is shorter. It is not searched for if neither can be
    /// shorter than `lz4_len`.
    fn plan(&self, page: &Page, lane_log: u8, lz4_len: usize) -> Plan {
        let plan = self.isa.plan(page, lane_log, false);
        if plan.len() <= DELTA_LEN_MIN || lz4_len <= DELTA_LEN_MIN {
            return plan;
        }
        let delta = self.isa.plan(page, lane_log, true);
        if delta.len() < plan.len() { delta } else { plan }
    }

    /// Writes a packed page and returns its length.
    fn pack(&self, page: &Page, plan: Plan, dst: &mut [u8; COMPRESS_BUF_LEN]) -> usize {
        if let Some(header) = dst.first_chunk_mut::<HEADER_LEN_MAX>() {
            plan.write(&lane::rows(page)[0], header);
        }
        let (payload, _) = dst[plan.header_len()..plan.len()].as_chunks_mut();
        self.isa.pack(page, plan, payload);
        plan.len()
    }
}

dispatch! {
    /// See [`analyze::estimate`].
    estimate(page: &Page) -> [u8; 4], analyze::estimate
}
dispatch! {
    /// See [`analyze::plan`].
    plan(page: &Page, lane_log: u8, is_delta: bool) -> Plan, analyze::plan
}
dispatch! {
    /// See [`pack::pack`].
    pack(page: &Page, plan: Plan, payload: &mut [RowBytes]), pack::pack
}
dispatch! {
    /// See [`unpack::unpack`].
    unpack(plan: Plan, first_row: &RowBytes, payload: &[RowBytes], page: &mut Page), unpack::unpack
}

/// Returns the lane whose numbers need the smallest share of their bits, of equal ones the widest, and the share, of 256.
fn narrowest(widths: [u8; 4]) -> (u8, usize) {
    let share = |lane_log: u8| (usize::from(widths[usize::from(lane_log)]) * 256) >> (3 + lane_log);
    let best = (0..4).rev().min_by_key(|lane_log| share(*lane_log)).unwrap_or(3);
    (best, share(best))
}
