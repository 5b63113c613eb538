//! Packs the numbers of a page.
//!
//! The layout is vertical, as that of FastLanes (Afroozeh and Boncz, "The FastLanes Compression Layout", PVLDB 16(9), 2023):
//! each column of lanes is a separate stream of bits, and all columns advance together. So a row is packed by the same
//! few operations as one number, and no bits cross lanes. FastLanes orders the rows for registers of 1024 bits; here they
//! are in the order of the page.

use super::format::Plan;
use super::lane::{Lane, ROW_LEN, ROWS, RowBytes, by_lane, load_row, store_row};
use pagefold_page::Page;

/// Packs the page, for which `plan` was made, into `payload`, of [`Plan::payload_len`] bytes.
#[inline(always)]
pub(super) fn pack(page: &Page, plan: Plan, payload: &mut [RowBytes]) {
    by_lane!(plan.lane_log, plan.is_delta, pack_lanes(page, plan, payload))
}

#[inline(always)]
fn pack_lanes<T: Lane, const N: usize, const DELTA: bool>(page: &Page, plan: Plan, payload: &mut [RowBytes]) {
    let (width, shift, base) = (u32::from(plan.width), u32::from(plan.shift), T::from_u64(plan.base));
    if width == 0 {
        return;
    }
    // The first difference is that of the base, which packs to 0.
    let mut before = [T::ZERO; N];
    let rows = super::lane::rows(page);
    if DELTA {
        before = load_row::<T, N>(&rows[0]).map(|lane| lane.sub(base));
    }
    let (mut word, mut used_bits, mut at) = ([T::ZERO; N], 0, 0);
    for row in rows {
        let lanes = load_row::<T, N>(row);
        let mut packed = [T::ZERO; N];
        for i in 0..N {
            let origin = if DELTA { before[i].add(base) } else { base };
            packed[i] = lanes[i].sub(origin) >> shift;
            word[i] = word[i] | packed[i] << used_bits;
        }
        before = lanes;
        // The word is written each time, and is complete the last time.
        store_row(&word, &mut payload[at]);
        if used_bits + width >= T::BITS {
            // The bits that do not fit begin the next word: none if the number ended with this one.
            for i in 0..N {
                word[i] = packed[i] >> 1 >> (T::BITS - 1 - used_bits);
            }
            at += 1;
        }
        used_bits = (used_bits + width) % T::BITS;
    }
    debug_assert_eq!(at, payload.len());
    debug_assert_eq!(at * ROW_LEN * 8, ROWS * N * width as usize);
}
