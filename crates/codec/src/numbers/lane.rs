//! The lanes of a page: its bytes as little-endian numbers of one width, in rows of 64 bytes.
//!
//! The kernels of this codec are loops over rows with one operation for all lanes of a row, so that the compiler turns a row
//! into one to four vector registers. They are generic over the lane, and wrap around: a lane is a bit pattern, not a
//! quantity.

use pagefold_page::{PAGE_SIZE, Page};
use std::ops::{BitAnd, BitOr, Shl, Shr};

/// Bytes of a row.
pub(super) const ROW_LEN: usize = 64;
/// Rows of a page.
pub(super) const ROWS: usize = PAGE_SIZE / ROW_LEN;
/// Bytes of the widest lane.
pub(super) const LANE_LEN_MAX: usize = 8;

/// The bytes of a row.
pub(super) type RowBytes = [u8; ROW_LEN];

/// A page as rows.
#[inline(always)]
pub(super) fn rows(page: &Page) -> &[RowBytes; ROWS] {
    let (rows, _) = page.as_chunks::<ROW_LEN>().0.as_chunks::<ROWS>();
    // A page has exactly one such group of rows.
    &rows[0]
}

/// A page as rows that are written.
#[inline(always)]
pub(super) fn rows_mut(page: &mut Page) -> &mut [RowBytes; ROWS] {
    let (rows, _) = page.as_chunks_mut::<ROW_LEN>().0.as_chunks_mut::<ROWS>();
    &mut rows[0]
}

/// An unsigned number of 8 to 64 bits.
pub(super) trait Lane:
    Copy + Eq + BitOr<Output = Self> + BitAnd<Output = Self> + Shl<u32, Output = Self> + Shr<u32, Output = Self>
{
    /// Its bytes.
    const LEN: usize;
    /// Its bits.
    const BITS: u32 = Self::LEN as u32 * 8;
    const ZERO: Self;
    /// The bytes of one.
    type Bytes: Copy;

    /// Divides bytes into lanes.
    fn split(bytes: &[u8]) -> &[Self::Bytes];
    fn from_bytes(bytes: Self::Bytes) -> Self;
    /// The lane `at` of a row.
    #[inline(always)]
    fn load(row: &RowBytes, at: usize) -> Self {
        Self::from_bytes(Self::split(row)[at])
    }
    fn store(self, row: &mut RowBytes, at: usize);
    /// The lowest bits of a number.
    fn from_u64(bits: u64) -> Self;
    fn to_u64(self) -> u64;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    /// The lesser one, both read as signed numbers.
    fn min_signed(self, other: Self) -> Self;
    /// The greater one, both read as signed numbers.
    fn max_signed(self, other: Self) -> Self;
}

macro_rules! lane {
    ($lane:ty, $signed:ty) => {
        impl Lane for $lane {
            const LEN: usize = size_of::<$lane>();
            const ZERO: Self = 0;
            type Bytes = [u8; size_of::<$lane>()];

            #[inline(always)]
            fn split(bytes: &[u8]) -> &[Self::Bytes] {
                bytes.as_chunks().0
            }

            #[inline(always)]
            fn from_bytes(bytes: Self::Bytes) -> Self {
                <$lane>::from_le_bytes(bytes)
            }

            #[inline(always)]
            fn store(self, row: &mut RowBytes, at: usize) {
                row[at * Self::LEN..][..Self::LEN].copy_from_slice(&self.to_le_bytes());
            }

            #[inline(always)]
            fn from_u64(bits: u64) -> Self {
                bits as $lane
            }

            #[inline(always)]
            fn to_u64(self) -> u64 {
                self.into()
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline(always)]
            fn min_signed(self, other: Self) -> Self {
                (self as $signed).min(other as $signed) as $lane
            }

            #[inline(always)]
            fn max_signed(self, other: Self) -> Self {
                (self as $signed).max(other as $signed) as $lane
            }
        }
    };
}

lane!(u8, i8);
lane!(u16, i16);
lane!(u32, i32);
lane!(u64, i64);

/// Calls a function that is generic over the type of lanes, their number in a row, and whether rows are differences.
macro_rules! by_lane {
    ($lane_log:expr, $is_delta:expr, $function:ident($($arg:expr),*)) => {
        match ($lane_log, $is_delta) {
            (0, false) => $function::<u8, 64, false>($($arg),*),
            (1, false) => $function::<u16, 32, false>($($arg),*),
            (2, false) => $function::<u32, 16, false>($($arg),*),
            (_, false) => $function::<u64, 8, false>($($arg),*),
            (0, true) => $function::<u8, 64, true>($($arg),*),
            (1, true) => $function::<u16, 32, true>($($arg),*),
            (2, true) => $function::<u32, 16, true>($($arg),*),
            (_, true) => $function::<u64, 8, true>($($arg),*),
        }
    };
}

pub(super) use by_lane;

/// The lanes of a row; `N` is [`ROW_LEN`] divided by the lane's length.
#[inline(always)]
pub(super) fn load_row<T: Lane, const N: usize>(row: &RowBytes) -> [T; N] {
    const { assert!(T::LEN * N == ROW_LEN) };
    std::array::from_fn(|at| T::load(row, at))
}

/// Writes the lanes of a row.
#[inline(always)]
pub(super) fn store_row<T: Lane, const N: usize>(lanes: &[T; N], row: &mut RowBytes) {
    const { assert!(T::LEN * N == ROW_LEN) };
    for (at, lane) in lanes.iter().enumerate() {
        lane.store(row, at);
    }
}
