//! Extended attributes: those after an inode, and those that several inodes share.
//!
//! Attributes are read one at a time, so memory is bounded: a name and a value have at most 64 KiB each. Attributes
//! whose prefix Linux does not list (hidden or unknown ones) are skipped.

use super::bytes::{advance, array_at};
use super::superblock::{PrefixPlace, PrefixTable};
use super::{Bytes, Inode, Superblock};
use crate::format::xattr::{self as disk, RawXattrEntry, RawXattrHeader};
use crate::{Address, ImageError, Nid, Result, Space};

/// Length of all names of an inode, with a NUL each, that Linux lists at most, bytes.
pub const NAMES_BYTES_MAX: usize = 64 << 10;

/// An attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xattr {
    /// The whole name, with its prefix.
    pub name: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// A long prefix: a short prefix and more of the name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Prefix {
    base_index: u8,
    infix: Vec<u8>,
}

/// The long prefixes of an image, kept in memory: at most 128, of 255 bytes each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prefixes(Vec<Prefix>);

impl Prefixes {
    /// Reads the table with `read`, which fills a buffer from an offset in the file or space of `table.place`.
    pub fn read(table: &PrefixTable, mut read: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Self> {
        let mut prefixes = Vec::new();
        let mut offset = table.offset;
        for number in 0..table.count {
            offset = offset.next_multiple_of(disk::ALIGN);
            let mut len = [0; disk::LONG_PREFIX_HEADER_LEN];
            read(offset, &mut len)?;
            let len = u16::from_le_bytes(len);
            // A base index of one byte, and an infix of at most 255.
            if !(1..=256).contains(&len) {
                let what = format!("long prefix {number} of attribute names has {len} bytes");
                return Err(ImageError::corrupt(table.address(offset), what));
            }
            let mut record = vec![0; usize::from(len)];
            read(offset + disk::LONG_PREFIX_HEADER_LEN as u64, &mut record)?;
            prefixes.push(Prefix { base_index: record.remove(0), infix: record });
            offset += disk::LONG_PREFIX_HEADER_LEN as u64 + u64::from(len);
        }
        Ok(Prefixes(prefixes))
    }

    /// Reads a table that does not lie in the packed file.
    pub fn read_from(bytes: &dyn Bytes, table: &PrefixTable) -> Result<Self> {
        Prefixes::read(table, |offset, buf| bytes.read_at(table.address(offset), buf))
    }

    /// Number of long prefixes.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns a long prefix in full, with its short prefix. For the attribute that marks files of equal contents,
    /// whose name is such a prefix.
    pub fn name(&self, number: u8) -> Option<Vec<u8>> {
        let prefix = self.0.get(usize::from(number))?;
        let mut name = disk::short_prefix(prefix.base_index).unwrap_or("").as_bytes().to_vec();
        name.extend_from_slice(&prefix.infix);
        Some(name)
    }

    /// Bytes of the table of these prefixes, padding included.
    pub(crate) fn table_bytes(&self) -> u64 {
        let record = |prefix: &Prefix| (disk::LONG_PREFIX_HEADER_LEN + 1 + prefix.infix.len()) as u64;
        self.0.iter().map(|prefix| record(prefix).next_multiple_of(disk::ALIGN)).sum()
    }

    /// Decodes a name index into its base index and infix; `None` if it is an unknown long prefix.
    pub fn resolve(&self, name_index: u8) -> Option<(u8, &[u8])> {
        if name_index & disk::INDEX_LONG_PREFIX == 0 {
            return Some((name_index, &[]));
        }
        let prefix = self.0.get(usize::from(name_index & !disk::INDEX_LONG_PREFIX))?;
        Some((prefix.base_index, &prefix.infix))
    }
}

impl PrefixTable {
    /// Address of a byte of the table. If the table lies in the packed file, the address is for errors only.
    fn address(&self, offset: u64) -> Address {
        let space = match self.place {
            PrefixPlace::Space(space) => space,
            PrefixPlace::Packed => Space::Device(0),
        };
        Address { space, offset }
    }
}

/// An attribute whose value has not been read yet.
struct Entry {
    name: Vec<u8>,
    value_at: Address,
    value_len: u16,
}

impl Entry {
    fn value(&self, bytes: &dyn Bytes) -> Result<Vec<u8>> {
        let mut value = vec![0; usize::from(self.value_len)];
        bytes.read_at(self.value_at, &mut value)?;
        Ok(value)
    }
}

/// The attributes of one inode.
pub struct Xattrs<'a> {
    bytes: &'a dyn Bytes,
    sb: &'a Superblock,
    prefixes: &'a Prefixes,
    nid: Nid,
    header: RawXattrHeader,
    /// Address of the numbers of shared attributes.
    shared: Address,
    /// Address of the first attribute.
    inline: Address,
    /// Offset of the end of the attributes.
    end: u64,
}

impl<'a> Xattrs<'a> {
    /// Reads the header.
    pub fn open(
        bytes: &'a dyn Bytes,
        sb: &'a Superblock,
        prefixes: &'a Prefixes,
        inode: &Inode,
    ) -> Result<Self> {
        let nid = inode.nid;
        let Some(at) = inode.xattr_address() else {
            let (header, none) = (RawXattrHeader::zeroed(), Address::image(0));
            return Ok(Xattrs { bytes, sb, prefixes, nid, header, shared: none, inline: none, end: 0 });
        };
        let len = u64::from(inode.xattr_bytes);
        if len <= RawXattrHeader::LEN as u64 {
            return Err(ImageError::corrupt(at, "attributes of which there is only the header"));
        }
        let header = RawXattrHeader::parse(&array_at(bytes, at)?);
        let shared = advance(at, RawXattrHeader::LEN as u64)?;
        let inline = advance(shared, u64::from(header.shared_count) * disk::ALIGN)?;
        let end = advance(at, len)?.offset;
        if inline.offset > end {
            let what = format!("{} shared attributes in {len} bytes", header.shared_count);
            return Err(ImageError::corrupt(at, what));
        }
        Ok(Xattrs { bytes, sb, prefixes, nid, header, shared, inline, end })
    }

    /// Calls `visit` for each listed attribute until it returns true, and returns whether it did.
    fn any(&self, mut visit: impl FnMut(&Entry) -> Result<bool>) -> Result<bool> {
        let mut at = self.inline;
        // Bounded: each entry has at least 4 bytes.
        while at.offset < self.end {
            let (entry, next) = self.entry(at, self.end)?;
            if let Some(entry) = entry
                && visit(&entry)?
            {
                return Ok(true);
            }
            at = next;
        }
        for number in 0..self.header.shared_count {
            let at = advance(self.shared, u64::from(number) * disk::ALIGN)?;
            let id = u32::from_le_bytes(array_at(self.bytes, at)?);
            if let (Some(entry), _) = self.entry(self.shared_address(id), u64::MAX)?
                && visit(&entry)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn shared_address(&self, id: u32) -> Address {
        let start = u64::from(self.sb.xattr_blkaddr) << self.sb.block_bits;
        let space = if self.sb.shared_xattrs_in_metabox { Space::Metabox } else { Space::Device(0) };
        Address { space, offset: start + u64::from(id) * disk::ALIGN }
    }

    /// Reads the attribute at `at`, which lies before `end`. Returns it, unless its prefix is not listed, and the
    /// address of the next one.
    fn entry(&self, at: Address, end: u64) -> Result<(Option<Entry>, Address)> {
        let raw = RawXattrEntry::parse(&array_at(self.bytes, at)?);
        let name_at = advance(at, RawXattrEntry::LEN as u64)?;
        let value_at = advance(name_at, u64::from(raw.name_len))?;
        let after = advance(value_at, u64::from(raw.value_size.get()))?;
        let next = after.offset.checked_next_multiple_of(disk::ALIGN);
        let next = next.filter(|next| *next <= end);
        let next = next.ok_or_else(|| {
            ImageError::corrupt(at, "an attribute that extends past the inode's attributes")
        })?;
        let next = Address { offset: next, ..at };
        let Some((base, infix)) = self.prefixes.resolve(raw.name_index) else {
            let number = raw.name_index & !disk::INDEX_LONG_PREFIX;
            let what = format!("an attribute with long prefix {number}, which the image does not have");
            return Err(ImageError::corrupt(at, what));
        };
        let Some(short) = disk::short_prefix(base) else { return Ok((None, next)) };
        let mut name = Vec::with_capacity(short.len() + infix.len() + usize::from(raw.name_len));
        name.extend_from_slice(short.as_bytes());
        name.extend_from_slice(infix);
        let stored = name.len();
        name.resize(stored + usize::from(raw.name_len), 0);
        if let Some(rest) = name.get_mut(stored..) {
            self.bytes.read_at(name_at, rest)?;
        }
        if name.contains(&0) {
            return Err(ImageError::corrupt(at, "an attribute with a NUL in its name"));
        }
        Ok((Some(Entry { name, value_at, value_len: raw.value_size.get() }), next))
    }

    /// Whether the inode's filter excludes an attribute `name`.
    fn rules_out(&self, name: &[u8]) -> bool {
        let proven = |(base, rest): (u8, &[u8])| {
            self.sb.xattr_filter && self.header.name_filter.get() & disk::filter_bit(base, rest) != 0
        };
        split_name(name).is_some_and(proven)
    }

    /// Calls `visit` for each attribute, first the inline ones, then the shared ones, and with whether the filter excludes
    /// its name, so that [`get`](Self::get) does not find it. Memory: one name and one value.
    pub fn visit(&self, mut visit: impl FnMut(Xattr, bool)) -> Result<()> {
        self.any(|entry| {
            let value = entry.value(self.bytes)?;
            visit(Xattr { name: entry.name.clone(), value }, self.rules_out(&entry.name));
            Ok(false)
        })?;
        Ok(())
    }

    /// Calls `visit` with the place of each attribute that other inodes may share: address and length, bytes.
    pub(crate) fn visit_shared_places(&self, mut visit: impl FnMut(Address, u64)) -> Result<()> {
        for number in 0..self.header.shared_count {
            let at = advance(self.shared, u64::from(number) * disk::ALIGN)?;
            let at = self.shared_address(u32::from_le_bytes(array_at(self.bytes, at)?));
            let (_, next) = self.entry(at, u64::MAX)?;
            visit(at, next.offset - at.offset);
        }
        Ok(())
    }

    /// Reads all attributes. The format allows 255 shared ones of 64 KiB and 256 KiB of inline ones, whose names long
    /// prefixes can make 64 times as long: [`visit`](Self::visit) takes less memory.
    pub fn list(&self) -> Result<Vec<Xattr>> {
        let mut found = Vec::new();
        self.visit(|xattr, _| found.push(xattr))?;
        Ok(found)
    }

    /// Reads the names; more than [`NAMES_BYTES_MAX`] is an error.
    pub fn names(&self) -> Result<Vec<Vec<u8>>> {
        let (mut found, mut total) = (Vec::new(), 0);
        self.any(|entry| {
            total += entry.name.len() + 1;
            if total > NAMES_BYTES_MAX {
                return Err(ImageError::TooManyNames { nid: self.nid, limit_bytes: NAMES_BYTES_MAX });
            }
            found.push(entry.name.clone());
            Ok(false)
        })?;
        Ok(found)
    }

    /// Reads the value of one attribute; `None` if the inode does not have it. The filter of the inode often proves that
    /// without a search.
    pub fn get(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = None;
        if !self.rules_out(name) {
            self.any(|entry| {
                let is_wanted = entry.name == name;
                value = is_wanted.then(|| entry.value(self.bytes)).transpose()?;
                Ok(is_wanted)
            })?;
        }
        Ok(value)
    }
}

/// Splits a name into the index of its short prefix and the rest.
fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    disk::SHORT_PREFIX_INDEXES.iter().find_map(|index| {
        let prefix = disk::short_prefix(*index)?;
        Some((*index, name.strip_prefix(prefix.as_bytes())?))
    })
}

#[cfg(test)]
mod tests;
