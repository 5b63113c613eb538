//! Extended attributes: those that several inodes share stand once in a pool, the others after their inode.

use super::prefixes::{LongPrefixes, split};
use crate::plan::Planned;
use crate::table::Table;
use crate::tree::{InodeId, Tree, XATTR_VALUE_LEN_MAX, Xattr};
use crate::{BuildError, Result};
use pagefold_image::format::xattr::{ALIGN, RawXattrEntry, RawXattrHeader, filter_bit, xattr_area_len_max};

/// Shared attributes of an inode at most.
const SHARED_COUNT_MAX: usize = u8::MAX as usize;
/// The number in the pool of an attribute that is not shared.
const NOT_SHARED: u32 = u32::MAX;

/// The shared attributes of an image.
#[derive(Debug)]
pub struct Pool {
    /// For each attribute of the tree its number, if it is shared: its position in steps of 4 bytes.
    numbers: Table<u32>,
    /// The entries of shared attributes, ordered by name and value.
    bytes: Table<u8>,
    prefixes: LongPrefixes,
}

impl Pool {
    /// Collects the attributes that at least `shared_min` of the inodes `ids` have: they share these. Names may get long
    /// prefixes whose table takes up to `prefix_bytes`; 0: there are none.
    pub fn collect(
        tree: &Tree,
        ids: impl Iterator<Item = InodeId>,
        prefix_bytes: usize,
        shared_min: u32,
        block_bytes: u32,
    ) -> Result<Self> {
        let (spill, attributes) = (tree.spill(), tree.attributes());
        let mut counts = Table::filled(spill, attributes.count(), 0u32)?;
        for id in ids {
            for number in tree.attribute_numbers(id) {
                counts.set(number as usize, counts.get(number as usize).saturating_add(1));
            }
        }
        // The numbers of attributes depend on the source, so they are ordered by what they are.
        let mut used = Table::new(spill);
        for number in (0..counts.len()).filter(|number| counts.get(*number) > 0) {
            used.push(number as u32)?;
        }
        used.sort_by(|one, other| attributes.get(*one).cmp(&attributes.get(*other)))?;
        let stored = used.iter().map(|number| {
            let ((name, value_len), count) = (attributes.name(number), counts.get(number as usize));
            (name, value_len, if count >= shared_min { 1 } else { count })
        });
        let prefixes = LongPrefixes::choose(stored, prefix_bytes);
        let numbers = Table::filled(spill, counts.len(), NOT_SHARED)?;
        let mut pool = Pool { numbers, bytes: Table::new(spill), prefixes };
        for number in used.iter().filter(|number| counts.get(*number as usize) >= shared_min) {
            pool.add(number, &attributes.get(number))?;
        }
        let len = pool.bytes.len().next_multiple_of(block_bytes as usize);
        pool.bytes.grow(len, 0)?;
        Ok(pool)
    }

    /// The long prefixes of names.
    pub fn prefixes(&self) -> &LongPrefixes {
        &self.prefixes
    }

    /// The entries, filled up to whole blocks.
    pub fn bytes(&self) -> &Table<u8> {
        &self.bytes
    }

    /// Encodes the attributes after an inode; empty if it has none.
    pub fn encode(&self, tree: &Tree, planned: &Planned) -> Result<Vec<u8>> {
        if !tree.has_xattrs(planned.id) {
            return Ok(Vec::new());
        }
        let (xattrs, path) = (tree.xattrs(planned.id), planned.path(tree));
        check(&xattrs, &path)?;
        let numbers = tree.attribute_numbers(planned.id).map(|number| self.numbers.get(number as usize));
        let (shared, inline): (Vec<_>, Vec<_>) =
            xattrs.iter().zip(numbers).partition(|(_, number)| *number != NOT_SHARED);
        let (shared, surplus) = shared.split_at(shared.len().min(SHARED_COUNT_MAX));
        let filter = xattrs.iter().fold(u32::MAX, |filter, (name, _)| match split(name) {
            Some((index, rest)) => filter & !filter_bit(index, rest),
            None => filter,
        });
        let header =
            RawXattrHeader { name_filter: filter.into(), shared_count: shared.len() as u8, reserved: [0; 7] };
        let mut out = header.encode().to_vec();
        out.extend(shared.iter().flat_map(|(_, number)| number.to_le_bytes()));
        surplus.iter().chain(&inline).for_each(|(xattr, _)| push_entry(xattr, &self.prefixes, &mut out));
        match out.len() as u64 > xattr_area_len_max() {
            true => Err(BuildError::refused(&path, "its attributes take more than 256 KiB")),
            false => Ok(out),
        }
    }

    fn add(&mut self, number: u32, xattr: &Xattr) -> Result<()> {
        let at = self.bytes.len();
        // An attribute beyond 16 GiB is not shared.
        let Some(pool_number) = u32::try_from(at as u64 / ALIGN).ok().filter(|number| *number != NOT_SHARED)
        else {
            return Ok(());
        };
        let mut entry = Vec::new();
        push_entry(xattr, &self.prefixes, &mut entry);
        self.bytes.grow(at + entry.len(), 0)?;
        self.bytes.write_at(at as u64, &entry);
        self.numbers.set(number as usize, pool_number);
        Ok(())
    }
}

/// Longest name of an attribute, with its prefix, bytes: `XATTR_NAME_MAX` of Linux's limits.h.
const XATTR_NAME_LEN_MAX: usize = 255;

/// The reason that an image cannot have an attribute; `None`: it can.
pub fn fault((name, value): &Xattr) -> Option<&'static str> {
    match split(name) {
        None => Some("unknown kind"),
        // Linux gives no longer ones to programs, whatever an image has.
        Some(_) if name.len() > XATTR_NAME_LEN_MAX => Some("a name of more than 255 bytes"),
        Some((_, rest)) if rest.contains(&0) => Some("a name with a NUL byte"),
        Some(_) if value.len() > XATTR_VALUE_LEN_MAX => Some("more than 64 KiB"),
        Some(_) => None,
    }
}

/// Checks whether an inode may have these attributes. `path` is for errors.
pub fn check(xattrs: &[Xattr], path: &[u8]) -> Result<()> {
    for xattr in xattrs {
        if let Some(what) = fault(xattr) {
            let shown = String::from_utf8_lossy(&xattr.0);
            return Err(BuildError::refused(path, format!("attribute {shown}: {what}")));
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
