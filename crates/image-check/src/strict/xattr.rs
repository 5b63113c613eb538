//! Rules of attributes. Names and access lists are checked by the ordinary check.

use super::context::Strict;
use super::inode::RawInode;
use super::spaces::SpaceUse;
use pagefold_image::format::features::compat;
use pagefold_image::format::xattr::{self as disk, RawXattrEntry, RawXattrHeader};
use pagefold_image::{Address, Result, Space, rules};

/// Judges the attributes after an inode.
pub(super) fn check(strict: &mut Strict<'_>, inode: &RawInode) -> Result<()> {
    let header_bytes = RawXattrHeader::LEN as u64;
    if inode.xattr_bytes <= header_bytes {
        return Ok(());
    }
    let at = Address { offset: inode.tail.offset - inode.xattr_bytes, ..inode.tail };
    let header = RawXattrHeader::parse(&strict.array(at)?);
    if header.reserved != [0; 7] {
        strict.fault(&rules::XATTR_HEADER, at, "reserved bytes of the header of the attributes");
    }
    let mut filter = u32::MAX;
    let shared = u64::from(header.shared_count);
    for number in 0..shared {
        let id_at = Address { offset: at.offset + header_bytes + number * disk::ALIGN, ..at };
        let id = u32::from_le_bytes(strict.array(id_at)?);
        let entry_at = shared_address(strict, id);
        match check_entry(strict, entry_at, &mut filter) {
            Ok(end) => claim_shared(strict, entry_at, end),
            Err(error) if error.is_damage() => {
                let what = format!("shared attribute {id} leads out of the image");
                strict.fault(&rules::XATTR_SHARED, id_at, what);
            }
            Err(error) => return Err(error),
        }
    }
    let mut offset = at.offset + header_bytes + shared * disk::ALIGN;
    while offset < inode.tail.offset {
        offset = check_entry(strict, Address { offset, ..at }, &mut filter)?;
    }
    check_filter(strict, at, header.name_filter.get(), filter);
    Ok(())
}

/// Judges the filter of an inode, whose attributes make it `wanted`.
fn check_filter(strict: &mut Strict<'_>, at: Address, found: u32, wanted: u32) {
    let is_used = strict.has_compat(compat::XATTR_FILTER);
    let wanted = if is_used { wanted } else { 0 };
    strict.usage.compat |= compat::XATTR_FILTER;
    // With this field readers ignore the filters.
    if strict.raw.xattr_filter_reserved == 0 && found != wanted {
        let what = format!("the filter of the attributes is {found:#010x}, and should be {wanted:#010x}");
        strict.fault(&rules::XATTR_FILTER, at, what);
    }
}

/// Judges one attribute, removes its bit from `filter`, and returns the offset after it.
fn check_entry(strict: &Strict<'_>, at: Address, filter: &mut u32) -> Result<u64> {
    let raw = RawXattrEntry::parse(&strict.array(at)?);
    let name_len = u64::from(raw.name_len);
    let end = at.offset + RawXattrEntry::LEN as u64 + name_len + u64::from(raw.value_size.get());
    let next = end.next_multiple_of(disk::ALIGN);
    if !strict.is_zero(Address { offset: end, ..at }, next - end)? {
        strict.fault(&rules::XATTR_FILL, at, "an attribute that is padded with other bytes than zeroes");
    }
    let mut rest = vec![0; raw.name_len.into()];
    strict.bytes().read_at(Address { offset: at.offset + RawXattrEntry::LEN as u64, ..at }, &mut rest)?;
    let long = raw.name_index & disk::INDEX_LONG_PREFIX != 0;
    let (base, infix) = match strict.image.prefixes().resolve(raw.name_index) {
        Some((base, infix)) => (base, infix),
        None => {
            strict.fault(
                &rules::XATTR_PREFIX,
                at,
                format!("an attribute with name index {:#x}", raw.name_index),
            );
            return Ok(next);
        }
    };
    // The base of a long prefix is judged with the table.
    if !long && disk::short_prefix(base).is_none() {
        strict.fault(&rules::XATTR_PREFIX, at, format!("an attribute with name index {base}"));
    }
    let name = [infix, &rest].concat();
    *filter &= !disk::filter_bit(base, &name);
    Ok(next)
}

fn shared_address(strict: &Strict<'_>, id: u32) -> Address {
    let start = u64::from(strict.raw.xattr_blkaddr.get()) << strict.block_bits();
    let space = match strict.has_compat(compat::SHARED_EA_IN_METABOX) {
        true => Space::Metabox,
        false => Space::Device(0),
    };
    Address { space, offset: start + u64::from(id) * disk::ALIGN }
}

/// Claims a shared attribute. Several inodes may use it.
fn claim_shared(strict: &mut Strict<'_>, at: Address, end: u64) {
    if at.space == Space::Metabox {
        strict.usage.compat |= compat::SHARED_EA_IN_METABOX;
    }
    strict.claim(SpaceUse::Attribute, at, end - at.offset);
}
