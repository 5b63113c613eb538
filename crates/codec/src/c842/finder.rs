//! [`Finder`]: where the pieces of a ring last occurred.
//!
//! Chains link the units with the same hash, the latest first. A unit that has left the ring ends its chain: all
//! further ones are older. So a search is exact: it finds the latest equal unit in the ring if there is one.

use super::format::Ring;

/// Log2 of the number of chains.
const HASH_BITS: u32 = 10;

/// The units of one ring.
pub(super) struct Finder {
    ring: Ring,
    /// For each hash, the number of the latest unit plus 1; 0 if there is none.
    heads: Box<[u16; 1 << HASH_BITS]>,
    /// For each unit of the ring, the number plus 1 of the unit before it in its chain.
    previous: Box<[u16]>,
    /// Values of the units of the ring.
    values: Box<[u64]>,
    /// Units that were added.
    count: usize,
}

impl Finder {
    pub(super) fn new(ring: Ring) -> Self {
        Finder {
            ring,
            heads: Box::new([0; 1 << HASH_BITS]),
            previous: vec![0; ring.units()].into_boxed_slice(),
            values: vec![0; ring.units()].into_boxed_slice(),
            count: 0,
        }
    }

    /// Forgets all units.
    pub(super) fn clear(&mut self) {
        self.heads.fill(0);
        self.count = 0;
    }

    /// Adds the next unit, which has the contents `value`.
    #[inline(always)]
    pub(super) fn add(&mut self, value: u64) {
        let at = self.count % self.ring.units();
        self.count += 1;
        let head = &mut self.heads[hash(value)];
        self.previous[at] = *head;
        self.values[at] = value;
        // A source has at most 64 KiB, so at most 32768 units.
        *head = self.count as u16;
    }

    /// The index of the latest unit with the contents `value`.
    #[inline(always)]
    pub(super) fn find(&self, value: u64) -> Option<u32> {
        let mut next = usize::from(self.heads[hash(value)]);
        while next != 0 && next + self.ring.units() > self.count {
            let at = (next - 1) % self.ring.units();
            if self.values[at] == value {
                return Some(at as u32);
            }
            next = usize::from(self.previous[at]);
        }
        None
    }
}

/// Fibonacci hashing.
#[inline(always)]
fn hash(value: u64) -> usize {
    (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - HASH_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::super::format::{PAIRS, PHRASES, QUADS};
    use super::*;

    #[test]
    fn the_latest_equal_unit_of_the_ring_is_found() {
        for ring in [PAIRS, QUADS, PHRASES] {
            let mut finder = Finder::new(ring);
            for round in 0..3u64 {
                let mut units: Vec<u64> = Vec::new();
                for i in 0..3000u64 {
                    // Few and many values, so that chains are long and units leave the ring.
                    let value = (i * i + round) % [7, 600, 100_000][round as usize];
                    let first = units.len().saturating_sub(ring.units());
                    let slow = (first..units.len()).rev().find(|at| units[*at] == value);
                    assert_eq!(finder.find(value), slow.map(|at| (at % ring.units()) as u32), "{round} {i}");
                    finder.add(value);
                    units.push(value);
                }
                finder.clear();
                assert_eq!(finder.find(0), None);
            }
        }
    }
}
