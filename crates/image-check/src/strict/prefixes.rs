//! Rules of the table of long prefixes of attribute names.

use super::context::Strict;
use super::spaces::SpaceUse;
use pagefold_image::format::features::{compat, incompat};
use pagefold_image::format::xattr as disk;
use pagefold_image::read::superblock::PrefixPlace;
use pagefold_image::{Address, Result, Space, rules};

/// Judges the table of long prefixes.
pub(super) fn check(strict: &mut Strict<'_>) -> Result<()> {
    let table = strict.image.superblock().prefixes;
    let plain = strict.has_compat(compat::PLAIN_XATTR_PFX);
    if plain && table.count > 0 && strict.has_incompat(incompat::XATTR_PREFIXES) {
        strict.usage.compat |= compat::PLAIN_XATTR_PFX;
    }
    let (packed, space) = match (table.place, strict.image.superblock().packed_nid) {
        (PrefixPlace::Space(space), _) => (None, space),
        (PrefixPlace::Packed, Some(nid)) => (Some(strict.image.node(nid)?), Space::Device(0)),
        (PrefixPlace::Packed, None) => return Ok(()),
    };
    let read = |offset: u64, buf: &mut [u8]| match &packed {
        Some(packed) => packed.read_at(offset, buf).map(|_| ()),
        None => strict.bytes().read_at(Address { space, offset }, buf),
    };
    let mut offset = table.offset;
    for number in 0..table.count {
        let start = offset.next_multiple_of(disk::ALIGN);
        let mut head = [0; 3 + disk::ALIGN as usize];
        let gap = (start - offset) as usize;
        read(offset, &mut head[..gap + 3])?;
        let at = Address { space, offset: start };
        if head[..gap].iter().any(|byte| *byte != 0) {
            strict.fault(&rules::XATTR_FILL, at, "a long prefix is padded with other bytes than zeroes");
        }
        let (len, base) = (u16::from_le_bytes([head[gap], head[gap + 1]]), head[gap + 2]);
        if base != 0 && disk::short_prefix(base).is_none() {
            strict.fault(&rules::XATTR_PREFIX, at, format!("long prefix {number} has the name index {base}"));
        }
        offset = start + 2 + u64::from(len);
    }
    if packed.is_none() && table.count > 0 {
        let at = Address { space, offset: table.offset };
        strict.claim(SpaceUse::Metadata, at, offset - table.offset);
    }
    Ok(())
}
