//! Finds out how narrow the numbers of a page are.
//!
//! A reference is subtracted from all numbers, and the differences are compared as signed numbers. So small numbers of both
//! signs are near each other, and so are large unsigned ones. The span of the differences is right for any numbers, because
//! all arithmetic wraps around; for numbers that are spread over more than half of their range it may not be the narrowest.

use super::format::Plan;
use super::lane::{Lane, ROW_LEN, by_lane, rows};
use pagefold_page::{PAGE_SIZE, Page};

/// [`estimate`] samples one row in this many.
const SAMPLE_STEP: usize = 8;
/// Bytes of these rows.
const SAMPLE_LEN: usize = PAGE_SIZE / SAMPLE_STEP;

/// Returns the widths of the numbers of some rows, for each lane from 1 to 8 bytes.
#[inline(always)]
pub(super) fn estimate(page: &Page) -> [u8; 4] {
    let mut sample = [0; SAMPLE_LEN];
    for (to, from) in sample.as_chunks_mut().0.iter_mut().zip(rows(page).iter().step_by(SAMPLE_STEP)) {
        *to = *from;
    }
    [
        spread::<u8>(&sample).width(),
        spread::<u16>(&sample).width(),
        spread::<u32>(&sample).width(),
        spread::<u64>(&sample).width(),
    ]
}

/// Returns the plan for a lane, of numbers as they are or of differences to the row before.
#[inline(always)]
pub(super) fn plan(page: &Page, lane_log: u8, is_delta: bool) -> Plan {
    by_lane!(lane_log, is_delta, plan_lanes(page))
}

#[inline(always)]
fn plan_lanes<T: Lane, const N: usize, const DELTA: bool>(page: &Page) -> Plan {
    let spread = if DELTA { row_spread::<T>(page) } else { spread::<T>(page) };
    spread.plan(DELTA)
}

/// The span of some numbers, by their differences to one of them.
struct Spread<T> {
    reference: T,
    lowest: T,
    highest: T,
    /// All bits that a difference has.
    bits: T,
}

impl<T: Lane> Spread<T> {
    #[inline(always)]
    fn new(reference: T) -> Self {
        Spread { reference, lowest: T::ZERO, highest: T::ZERO, bits: T::ZERO }
    }

    #[inline(always)]
    fn add(&mut self, number: T) {
        let difference = number.sub(self.reference);
        self.lowest = self.lowest.min_signed(difference);
        self.highest = self.highest.max_signed(difference);
        self.bits = self.bits | difference;
    }

    /// Zero bits that all packed numbers have at the end.
    #[inline(always)]
    fn shift(&self) -> u8 {
        if self.bits == T::ZERO { 0 } else { self.bits.to_u64().trailing_zeros() as u8 }
    }

    /// Bits of a packed number.
    #[inline(always)]
    fn width(&self) -> u8 {
        let span = self.highest.sub(self.lowest).to_u64();
        (u64::BITS - (span >> self.shift()).leading_zeros()) as u8
    }

    #[inline(always)]
    fn plan(&self, is_delta: bool) -> Plan {
        Plan {
            lane_log: T::LEN.ilog2() as u8,
            is_delta,
            shift: self.shift(),
            width: self.width(),
            base: self.reference.add(self.lowest).to_u64(),
        }
    }
}

/// The spread of all numbers.
#[inline(always)]
fn spread<T: Lane>(bytes: &[u8]) -> Spread<T> {
    let numbers = T::split(bytes);
    let mut spread = Spread::new(T::from_bytes(numbers[0]));
    for number in numbers {
        spread.add(T::from_bytes(*number));
    }
    spread
}

/// The spread of the differences of all numbers to those a row before.
#[inline(always)]
fn row_spread<T: Lane>(page: &Page) -> Spread<T> {
    let (before, numbers) = (T::split(&page[..PAGE_SIZE - ROW_LEN]), T::split(&page[ROW_LEN..]));
    let mut spread = Spread::new(T::from_bytes(numbers[0]).sub(T::from_bytes(before[0])));
    for (number, before) in numbers.iter().zip(before) {
        spread.add(T::from_bytes(*number).sub(T::from_bytes(*before)));
    }
    spread
}
