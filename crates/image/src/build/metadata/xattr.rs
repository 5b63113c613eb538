//! Extended attributes: those that several inodes share stand once in a pool, the others behind their inode.

use super::prefixes::LongPrefixes;
use crate::build::BuildError;
use crate::build::options::BLOCK_BYTES;
use crate::build::plan::Planned;
use crate::build::tree::{InodeId, Tree, XATTR_VALUE_LEN_MAX, Xattr};
use crate::format::xattr::{
    ALIGN, RawXattrEntry, RawXattrHeader, SHORT_PREFIX_INDEXES, filter_bit, short_prefix, xattr_area_len_max,
};
use std::collections::BTreeMap;

/// An attribute that at least this many inodes have is shared: it takes 4 bytes in each, and once its length.
const SHARED_MIN: u32 = 3;
/// Shared attributes of an inode at most.
const SHARED_COUNT_MAX: usize = u8::MAX as usize;

/// The shared attributes of an image.
#[derive(Debug, Default)]
pub struct Pool<'a> {
    /// Number of each shared attribute: its position in steps of 4 bytes.
    numbers: BTreeMap<&'a Xattr, u32>,
    bytes: Vec<u8>,
    prefixes: LongPrefixes,
}

impl<'a> Pool<'a> {
    /// Collects the attributes that the inodes `ids` share. Names may get long prefixes whose table takes up to
    /// `prefix_bytes`; 0: there are none.
    pub fn collect(tree: &'a Tree, ids: impl Iterator<Item = InodeId>, prefix_bytes: usize) -> Self {
        let mut counts: BTreeMap<&Xattr, u32> = BTreeMap::new();
        for id in ids {
            for xattr in tree.xattrs(id) {
                *counts.entry(xattr).or_default() += 1;
            }
        }
        let stored =
            counts.iter().map(|(xattr, count)| (*xattr, if *count >= SHARED_MIN { 1 } else { *count }));
        let mut pool = Pool { prefixes: LongPrefixes::choose(stored, prefix_bytes), ..Pool::default() };
        for (xattr, _) in counts.into_iter().filter(|(_, count)| *count >= SHARED_MIN) {
            pool.numbers.insert(xattr, (pool.bytes.len() as u64 / ALIGN) as u32);
            push_entry(xattr, &pool.prefixes, &mut pool.bytes);
        }
        pool
    }

    /// The long prefixes of names.
    pub fn prefixes(&self) -> &LongPrefixes {
        &self.prefixes
    }

    /// The pool, filled up to whole blocks.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        bytes
    }

    /// Encodes the attributes behind an inode; empty if it has none.
    pub fn encode(&self, tree: &Tree, planned: &Planned) -> Result<Vec<u8>, BuildError> {
        let xattrs = tree.xattrs(planned.id);
        if xattrs.is_empty() {
            return Ok(Vec::new());
        }
        let path = planned.path(tree);
        check(xattrs, &path)?;
        let (shared, inline): (Vec<_>, Vec<_>) = xattrs
            .iter()
            .map(|xattr| (xattr, self.numbers.get(xattr).copied()))
            .partition(|(_, n)| n.is_some());
        let (shared, surplus) = shared.split_at(shared.len().min(SHARED_COUNT_MAX));
        let filter = xattrs.iter().fold(u32::MAX, |filter, (name, _)| match split(name) {
            Some((index, rest)) => filter & !filter_bit(index, rest),
            None => filter,
        });
        let header =
            RawXattrHeader { name_filter: filter.into(), shared_count: shared.len() as u8, reserved: [0; 7] };
        let mut out = header.encode().to_vec();
        out.extend(shared.iter().flat_map(|(_, number)| number.unwrap_or(0).to_le_bytes()));
        surplus.iter().chain(&inline).for_each(|(xattr, _)| push_entry(xattr, &self.prefixes, &mut out));
        match out.len() as u64 > xattr_area_len_max() {
            true => Err(BuildError::refused(&path, "its attributes take more than 256 KiB")),
            false => Ok(out),
        }
    }
}

/// Longest name of an attribute, with its prefix, bytes: `XATTR_NAME_MAX` of Linux's limits.h.
const XATTR_NAME_LEN_MAX: usize = 255;

/// Splits a name into the number of its prefix and the rest. `None`: the format has no number for the prefix.
pub fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    SHORT_PREFIX_INDEXES.iter().find_map(|&index| {
        let rest = name.strip_prefix(short_prefix(index)?.as_bytes())?;
        // The names of access lists are prefixes without a rest.
        (rest.is_empty() == matches!(index, 2 | 3)).then_some((index, rest))
    })
}

/// Checks whether an inode may have these attributes. `path` is for errors.
pub fn check(xattrs: &[Xattr], path: &[u8]) -> Result<(), BuildError> {
    for (name, value) in xattrs {
        let shown = String::from_utf8_lossy(name);
        match split(name) {
            None => return Err(BuildError::refused(path, format!("attribute {shown}: unknown kind"))),
            // Linux gives no longer ones to programs, whatever an image has.
            Some(_) if name.len() > XATTR_NAME_LEN_MAX => {
                return Err(BuildError::refused(
                    path,
                    format!("attribute {shown}: a name of more than 255 bytes"),
                ));
            }
            Some((_, rest)) if rest.contains(&0) => {
                return Err(BuildError::refused(path, format!("attribute {shown}: a name with a NUL byte")));
            }
            Some(_) if value.len() > XATTR_VALUE_LEN_MAX => {
                return Err(BuildError::refused(path, format!("attribute {shown}: more than 64 KiB")));
            }
            Some(_) => {}
        }
    }
    match xattrs.windows(2).all(|pair| pair[0].0 < pair[1].0) {
        true => Ok(()),
        false => Err(BuildError::refused(path, "attributes that are not sorted by name")),
    }
}

fn push_entry((name, value): &Xattr, prefixes: &LongPrefixes, out: &mut Vec<u8>) {
    // Names are checked before entries are written.
    let (base, rest) = split(name).unwrap_or((0, name));
    let (index, rest) = prefixes.shorten(base, rest);
    let entry = RawXattrEntry {
        name_len: rest.len() as u8,
        name_index: index,
        value_size: (value.len() as u16).into(),
    };
    out.extend(entry.encode());
    out.extend(rest);
    out.extend(value.iter());
    out.resize(out.len().next_multiple_of(ALIGN as usize), 0);
}
