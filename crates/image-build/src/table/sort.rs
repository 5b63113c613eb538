//! Sorting a table: each chunk by itself, and then by merging.

use super::{Record, Table};
use crate::Result;
use std::cmp::Ordering;

impl<T: Record> Table<T> {
    /// Sorts the records; equal ones keep their order. It needs as much room again as the table has.
    pub fn sort_by(&mut self, compare: impl Fn(&T, &T) -> Ordering) -> Result<()> {
        let len = self.len();
        for number in 0..self.chunks.len() {
            let used = len.saturating_sub(number * Self::PER_CHUNK).min(Self::PER_CHUNK);
            self.records_mut(number, 0..used).sort_by(&compare);
        }
        let mut sorted = Self::PER_CHUNK;
        while sorted < len {
            let mut merged = Table::new(&self.spill);
            for start in (0..len).step_by(2 * sorted) {
                let middle = (start + sorted).min(len);
                self.merge(start..middle, middle..(middle + sorted).min(len), &compare, &mut merged)?;
            }
            *self = merged;
            sorted *= 2;
        }
        Ok(())
    }

    fn merge(
        &self,
        mut left: std::ops::Range<usize>,
        mut right: std::ops::Range<usize>,
        compare: &impl Fn(&T, &T) -> Ordering,
        merged: &mut Table<T>,
    ) -> Result<()> {
        while !left.is_empty() && !right.is_empty() {
            let (first, second) = (self.get(left.start), self.get(right.start));
            let from_right = compare(&second, &first) == Ordering::Less;
            let (taken, from) = if from_right { (second, &mut right) } else { (first, &mut left) };
            merged.push(taken)?;
            from.start += 1;
        }
        for index in left.chain(right) {
            merged.push(self.get(index))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Spill;
    use super::*;

    #[test]
    fn a_table_is_sorted_as_a_vector_is() {
        for (len, spill) in [(0, false), (10, false), (400_000, true), (700_001, true), (700_001, false)] {
            let spill = match spill {
                true => Spill::in_directory(&std::env::temp_dir(), 0).unwrap(),
                false => Spill::none(),
            };
            let mut twin: Vec<u64> =
                (0..len).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20).collect();
            let mut table = Table::new(&spill);
            twin.iter().for_each(|n| drop(table.push(*n)));
            // Many are equal, so this shows whether the order is kept.
            let key = |n: &u64| n >> 38;
            table.sort_by(|a, b| key(a).cmp(&key(b))).unwrap();
            twin.sort_by_key(key);
            assert!(table.iter().eq(twin.iter().copied()), "{len}");
        }
    }
}
