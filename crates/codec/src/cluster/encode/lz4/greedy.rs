//! A fast LZ4 encoder with any window: of all positions with the same hash it knows the last, and takes each match that
//! it finds.

use super::block::BlockWriter;
use crate::cluster::encode::fit::Fit;
use crate::load::{common_prefix, load_u32};
use crate::lz4_block::{LAST_LITERALS, LAST_MATCH_TO_END, MATCH_LEN_MIN};

const HASH_BITS: u32 = 13;
/// After `1 << SKIP_TRIGGER` probes without a match only every second position is probed; then every third, and so on.
const SKIP_TRIGGER: usize = 6;

/// The last position of each hash of 4 bytes.
pub(super) struct Greedy {
    window: usize,
    table: Box<[u32]>,
}

impl Greedy {
    pub(super) const HEAP_BYTES: usize = size_of::<u32>() << HASH_BITS;

    pub(super) fn new(window: usize) -> Self {
        Greedy { window, table: vec![0; 1 << HASH_BITS].into_boxed_slice() }
    }

    /// Compresses as long a beginning of `src` as fits.
    pub(super) fn fit(&mut self, src: &[u8], dst: &mut [u8]) -> Fit {
        let mut out = BlockWriter::new(src, dst);
        // An entry that was never written is position 0, a candidate like any other.
        self.table.fill(0);
        let Some(start_max) = src.len().checked_sub(LAST_MATCH_TO_END) else { return out.finish() };
        let matchable = &src[..src.len() - LAST_LITERALS];
        let (mut at, mut probes) = (1, 1 << SKIP_TRIGGER);
        while at <= start_max {
            // The rest of the source would be literals that do not fit.
            if at - out.anchor() > out.room() {
                break;
            }
            let bytes = load_u32(src, at);
            let from = self.replace(bytes, at);
            if from >= at || at - from > self.window || load_u32(src, from) != bytes {
                at += probes >> SKIP_TRIGGER;
                probes += 1;
                continue;
            }
            let back = common_before(src, from, at, out.anchor());
            let (start, earlier) = (at - back, from - back);
            let known = at + MATCH_LEN_MIN;
            let end = known + common_prefix(matchable, from + MATCH_LEN_MIN, known);
            if !out.sequence(start, start - earlier, end - start) {
                break;
            }
            if end - 2 <= start_max {
                self.replace(load_u32(src, end - 2), end - 2);
            }
            (at, probes) = (end, 1 << SKIP_TRIGGER);
        }
        out.finish()
    }

    /// Inserts a position and returns the one that it replaces.
    #[inline(always)]
    fn replace(&mut self, bytes: u32, at: usize) -> usize {
        let hash = bytes.wrapping_mul(0x9e37_79b1) >> (u32::BITS - HASH_BITS);
        std::mem::replace(&mut self.table[hash as usize], at as u32) as usize
    }
}

/// Returns the number of equal bytes before `from` and `at`, at most back to `anchor`.
#[inline(always)]
fn common_before(src: &[u8], from: usize, at: usize, anchor: usize) -> usize {
    let most = from.min(at - anchor);
    (0..most).take_while(|len| src[at - 1 - len] == src[from - 1 - len]).count()
}
