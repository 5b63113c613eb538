//! Unpacks the numbers of a page: the counterpart of `pack`.

use super::format::Plan;
use super::lane::{Lane, RowBytes, by_lane, load_row, rows_mut, store_row};
use pagefold_page::Page;

/// Fills the page from its packed numbers. `plan` and `payload` are those that [`Plan::read`] returned.
#[inline(always)]
pub(super) fn unpack(plan: Plan, first_row: &RowBytes, payload: &[RowBytes], page: &mut Page) {
    by_lane!(plan.lane_log, plan.is_delta, unpack_lanes(plan, first_row, payload, page))
}

#[inline(always)]
fn unpack_lanes<T: Lane, const N: usize, const DELTA: bool>(
    plan: Plan,
    first_row: &RowBytes,
    payload: &[RowBytes],
    page: &mut Page,
) {
    let (width, shift, base) = (u32::from(plan.width), u32::from(plan.shift), T::from_u64(plan.base));
    // Without packed numbers, all are 0.
    let payload = if width == 0 { &[[0; _]][..] } else { payload };
    let mask = T::from_u64(1_u64.checked_shl(width).map_or(u64::MAX, |above| above - 1));
    let last = payload.len() - 1;
    let mut origin = [base; N];
    if DELTA {
        // The first row's packed numbers are 0.
        origin = load_row::<T, N>(first_row);
    }
    for (index, row) in rows_mut(page).iter_mut().enumerate() {
        let bit = index as u32 * width;
        let (at, used_bits) = ((bit / T::BITS) as usize, bit % T::BITS);
        let (low, high) = (load_row::<T, N>(&payload[at]), load_row::<T, N>(&payload[last.min(at + 1)]));
        let mut lanes = [T::ZERO; N];
        for i in 0..N {
            // If the number ends with its first word, the mask removes the bits of the second.
            let bits = low[i] >> used_bits | high[i] << 1 << (T::BITS - 1 - used_bits);
            lanes[i] = origin[i].add((bits & mask) << shift);
            if DELTA {
                origin[i] = lanes[i].add(base);
            }
        }
        store_row(&lanes, row);
    }
}
