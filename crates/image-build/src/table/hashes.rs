//! A table from hashes to numbers, by open addressing.
//!
//! The keys are parts of SHA-256 values, or numbers in as many bytes. The slot of a key is a keyed hash of it, so a source
//! cannot choose contents that fall on the same slot. Nothing depends on slots but time.

use super::{Spill, Table};
use crate::Result;
use sha2::{Digest, Sha256};
use std::hash::{BuildHasher, RandomState};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A key of a table of hashes.
pub type Key = [u8; HASH_BYTES];
/// Bytes of a key: 2^96 contents would have to be tried for two with one value.
pub const HASH_BYTES: usize = 24;
/// Slots at first.
const SLOTS_MIN: usize = 1 << 10;
/// The number in a slot without a key.
const EMPTY: u64 = u64::MAX;

/// Numbers below `u64::MAX` by hashes.
#[derive(Debug)]
pub struct Hashes {
    slots: Table<Slot>,
    len: usize,
    state: RandomState,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Slot {
    key: Key,
    number: u64,
}

impl Hashes {
    /// An empty table.
    pub fn new(spill: &Spill) -> Self {
        Hashes { slots: Table::new(spill), len: 0, state: RandomState::new() }
    }

    /// The key of contents in parts: the beginning of their SHA-256, since sources are hostile, and equal values of other
    /// hashes can be made.
    pub fn key_of_bytes(parts: &[&[u8]]) -> Key {
        key_of_hash(parts.iter().fold(Sha256::new(), |hash, part| hash.chain_update(part)))
    }

    /// The key of two numbers.
    pub fn key_of(one: u64, other: u64) -> Key {
        let mut key = [0; HASH_BYTES];
        key[..8].copy_from_slice(&one.to_le_bytes());
        key[8..16].copy_from_slice(&other.to_le_bytes());
        key
    }

    /// Number of keys.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.len
    }

    /// The number of a key.
    pub fn get(&self, key: &Key) -> Option<u64> {
        match self.slots.len() {
            0 => None,
            _ => Some(self.slots.get(find(&self.slots, &self.state, key)).number)
                .filter(|number| *number != EMPTY),
        }
    }

    /// Returns the number of a key; one that is not there yet gets this number.
    pub fn get_or_insert(&mut self, key: &Key, number: u64) -> Result<Option<u64>> {
        assert!(number != EMPTY);
        if self.len >= self.slots.len() / 4 * 3 {
            self.enlarge()?;
        }
        let at = find(&self.slots, &self.state, key);
        let found = self.slots.get(at).number;
        if found != EMPTY {
            return Ok(Some(found));
        }
        self.slots.set(at, Slot { key: *key, number });
        self.len += 1;
        Ok(None)
    }

    fn enlarge(&mut self) -> Result<()> {
        let empty = Slot { key: [0; HASH_BYTES], number: EMPTY };
        let count = (2 * self.slots.len()).max(SLOTS_MIN);
        let mut slots = Table::filled(self.slots.spill(), count, empty)?;
        for slot in self.slots.iter().filter(|slot| slot.number != EMPTY) {
            let at = find(&slots, &self.state, &slot.key);
            slots.set(at, slot);
        }
        self.slots = slots;
        Ok(())
    }
}

/// The key of contents that were added to a hash.
pub fn key_of_hash(hash: Sha256) -> Key {
    let sha256: [u8; 32] = hash.finalize().into();
    std::array::from_fn(|at| sha256[at])
}

/// The slot of a key, or the empty one that it would get. At least one slot is empty, and their number is a power of two.
fn find(slots: &Table<Slot>, state: &RandomState, key: &Key) -> usize {
    let mask = slots.len() - 1;
    let mut at = state.hash_one(key) as usize & mask;
    loop {
        let slot = slots.get(at);
        if slot.number == EMPTY || slot.key == *key {
            return at;
        }
        at = (at + 1) & mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn it_holds_what_a_map_holds() {
        let spill = Spill::in_directory(&std::env::temp_dir(), 0).unwrap();
        let (mut hashes, mut twin) = (Hashes::new(&spill), HashMap::new());
        // Many keys begin alike, and many repeat.
        let key = |n: u64| {
            let mut key = [0; HASH_BYTES];
            key[..8].copy_from_slice(&(n % 3001).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            key[8..16].copy_from_slice(&(n * n % 90_001).to_le_bytes());
            key
        };
        assert_eq!(hashes.get(&key(1)), None);
        for n in 0..200_000u64 {
            let before = twin.get(&key(n)).copied();
            twin.entry(key(n)).or_insert(n);
            assert_eq!(hashes.get_or_insert(&key(n), n).unwrap(), before);
        }
        assert_eq!(hashes.len(), twin.len());
        assert!(twin.iter().all(|(key, n)| hashes.get(key) == Some(*n)));
        assert_eq!(hashes.get(&[0xff; HASH_BYTES]), None);
        assert!(spill.mapped_bytes() > 0);
    }
}
