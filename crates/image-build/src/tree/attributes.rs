//! The extended attributes of a tree: each attribute once, and each set of them once.
//!
//! Most inodes of a tree have one of a few sets, such as a label; but in some trees each has its own, such as a checksum. So
//! attributes and sets lie in tables that may spill, and are found by hashes.

use super::inode::Xattr;
use crate::table::{Hashes, Spill, Table};
use crate::{BuildError, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The number of the empty set. Other sets are counted from 1.
pub const NO_ATTRIBUTES: u32 = 0;

/// An attribute: its name begins at a byte, and its value follows.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Location {
    at: u64,
    name_len: u32,
    value_len: u32,
}

/// The members of a set: consecutive ones.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Set {
    first: u64,
    count: u64,
}

/// All attributes and sets.
#[derive(Debug)]
pub struct Attributes {
    bytes: Table<u8>,
    places: Table<Location>,
    numbers: Hashes,
    /// The numbers of attributes, set after set.
    members: Table<u32>,
    sets: Table<Set>,
    set_numbers: Hashes,
}

impl Attributes {
    /// Nothing but the empty set.
    pub fn new(spill: &Spill) -> Self {
        Attributes {
            bytes: Table::new(spill),
            places: Table::new(spill),
            numbers: Hashes::new(spill),
            members: Table::new(spill),
            sets: Table::new(spill),
            set_numbers: Hashes::new(spill),
        }
    }

    /// The number of a set, which is added if it is new.
    pub fn number_of_set(&mut self, set: &[Xattr]) -> Result<u32> {
        if set.is_empty() {
            return Ok(NO_ATTRIBUTES);
        }
        let numbers = set.iter().map(|xattr| self.number(xattr)).collect::<Result<Vec<u32>, _>>()?;
        let key = Hashes::key_of_bytes(&[numbers.as_bytes()]);
        if let Some(number) = self.set_numbers.get(&key) {
            return Ok(number as u32);
        }
        let (first, count) = (self.members.len() as u64, numbers.len() as u64);
        let number = number_behind(self.sets.len())?;
        for number in numbers {
            self.members.push(number)?;
        }
        self.sets.push(Set { first, count })?;
        // Last, so that a number that is found has its set, even after an error.
        self.set_numbers.get_or_insert(&key, number.into())?;
        Ok(number)
    }

    /// The numbers of the attributes of a set, in its order.
    pub fn members(&self, set: u32) -> impl Iterator<Item = u32> + '_ {
        let set = (set as usize).checked_sub(1).map(|index| self.sets.get(index));
        let members = set.map_or(0..0, |Set { first, count }| first..first + count);
        members.map(|index| self.members.get(index as usize))
    }

    /// Number of attributes.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// An attribute.
    pub fn get(&self, number: u32) -> Xattr {
        let Location { at, name_len, value_len } = self.places.get(number as usize);
        let value_at = at + u64::from(name_len);
        let value = self.bytes.read_at(value_at..value_at + u64::from(value_len));
        (self.bytes.read_at(at..value_at).into(), value.into())
    }

    /// The name of an attribute, and the length of its value, bytes.
    pub fn name(&self, number: u32) -> (Vec<u8>, usize) {
        let Location { at, name_len, value_len } = self.places.get(number as usize);
        (self.bytes.read_at(at..at + u64::from(name_len)), value_len as usize)
    }

    fn number(&mut self, (name, value): &Xattr) -> Result<u32> {
        let lengths = u32::try_from(name.len()).ok().zip(u32::try_from(value.len()).ok());
        let Some((name_len, value_len)) = lengths else {
            return Err(BuildError::TooLarge { what: "an attribute of 4 GiB".into() });
        };
        // The length says where the value begins.
        let key = Hashes::key_of_bytes(&[&name_len.to_le_bytes(), name, value]);
        if let Some(number) = self.numbers.get(&key) {
            return Ok(number as u32);
        }
        let number = number_behind(self.places.len())? - 1;
        let at = self.bytes.len();
        self.bytes.grow(at + name.len() + value.len(), 0)?;
        self.bytes.write_at(at as u64, name);
        self.bytes.write_at((at + name.len()) as u64, value);
        self.places.push(Location { at: at as u64, name_len, value_len })?;
        self.numbers.get_or_insert(&key, number.into())?;
        Ok(number)
    }
}

/// The number of a record after so many others, counted from 1.
fn number_behind(len: usize) -> Result<u32> {
    u32::try_from(len + 1).map_err(|_| BuildError::TooLarge { what: "2^32 attributes".into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn xattr((name, value): &(Vec<u8>, Vec<u8>)) -> Xattr {
        (name.as_slice().into(), value.as_slice().into())
    }

    proptest! {
        /// Names and values that differ only in where one ends are different attributes.
        #[test]
        fn it_holds_what_a_map_holds(
            sets in proptest::collection::vec(
                proptest::collection::vec(
                    (proptest::collection::vec(0u8..2, 0..3), proptest::collection::vec(0u8..2, 0..3)), 0..4),
                1..80),
        ) {
            let spill = Spill::in_directory(&std::env::temp_dir(), 0).unwrap();
            let (mut attributes, mut twin) = (Attributes::new(&spill), HashMap::new());
            for set in &sets {
                let set: Vec<Xattr> = set.iter().map(xattr).collect();
                let number = attributes.number_of_set(&set).unwrap();
                prop_assert_eq!(*twin.entry(set.clone()).or_insert(number), number);
            }
            let numbers: std::collections::HashSet<u32> = twin.values().copied().collect();
            prop_assert_eq!(numbers.len(), twin.len());
            let known: std::collections::HashSet<&Xattr> = twin.keys().flatten().collect();
            prop_assert_eq!(attributes.count(), known.len());
            for (set, number) in &twin {
                let found: Vec<Xattr> = attributes.members(*number).map(|member| attributes.get(member)).collect();
                prop_assert_eq!(&found, set);
            }
        }
    }

    #[test]
    fn long_values_cross_the_chunks_of_tables() {
        let spill = Spill::in_directory(&std::env::temp_dir(), 0).unwrap();
        let mut attributes = Attributes::new(&spill);
        let sets: Vec<Vec<Xattr>> = (0..40u8)
            .map(|n| {
                vec![
                    (b"user.a".as_slice().into(), vec![n; 65_535].into()),
                    (vec![b'b', n].into(), Box::default()),
                ]
            })
            .collect();
        let numbers: Vec<u32> = sets.iter().map(|set| attributes.number_of_set(set).unwrap()).collect();
        for (set, number) in sets.iter().zip(&numbers) {
            assert_eq!(attributes.number_of_set(set).unwrap(), *number);
            assert!(attributes.members(*number).map(|member| attributes.get(member)).eq(set.iter().cloned()));
        }
        assert!(spill.mapped_bytes() > 0);
    }
}
