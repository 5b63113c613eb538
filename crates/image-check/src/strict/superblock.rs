//! Rules of the superblock's fields.

use super::context::Strict;
use super::spaces::SpaceUse;
use pagefold_image::format::features::{compat, incompat};
use pagefold_image::format::superblock::{self as disk, RawMetaboxSlot, RawSuperblock};
use pagefold_image::{Address, Result, rules};

/// Address of the superblock's byte `offset`.
fn field(offset: u64) -> Address {
    Address::image(disk::OFFSET + offset)
}

/// Judges the fields of the superblock and its extension slots.
pub(super) fn check(strict: &mut Strict<'_>) {
    let raw = strict.raw;
    if raw.reserved1.get() != 0 || raw.reserved2.get() != 0 {
        strict.fault(&rules::SB_RESERVED, field(0x6a), "reserved bytes of the superblock are not zero");
    }
    let text_len = raw.volume_name.iter().position(|byte| *byte == 0);
    let is_terminated = text_len.is_some_and(|len| raw.volume_name[len..].iter().all(|byte| *byte == 0));
    if !is_terminated {
        strict.fault(&rules::SB_NAME, field(0x40), "the volume's name has no NUL, or bytes after it");
    }
    if let Some(cut) = strict.image.cut_block() {
        strict.fault(&rules::SB_END, Address::image(cut.len_bytes), cut.to_string());
    }
    check_fields(strict);
    let slots = u64::from(raw.sb_extslots) * disk::EXTSLOT_LEN;
    let end = disk::OFFSET + RawSuperblock::LEN as u64 + slots;
    let _ = check_slots(strict, slots);
    strict.claim(SpaceUse::Metadata, field(0), end - disk::OFFSET);
}

/// Judges the fields of features that the image does not have.
fn check_fields(strict: &mut Strict<'_>) {
    let raw = strict.raw;
    let has = |bit| raw.feature_incompat.get() & bit != 0;
    let has_compat = |bit| raw.feature_compat.get() & bit != 0;
    let prefix_fields = u64::from(raw.xattr_prefix_count) | u64::from(raw.xattr_prefix_start.get());
    let fields = [
        ("rootnid_8b", 0x70, has(incompat::WIDE_ADDRESSES), raw.rootnid_8b.get()),
        ("extra_devices", 0x56, has(incompat::DEVICE_TABLE), raw.extra_devices.get().into()),
        ("xattr_prefix", 0x5b, has(incompat::XATTR_PREFIXES), prefix_fields),
        ("packed_nid", 0x60, has(incompat::FRAGMENTS), raw.packed_nid.get()),
        (
            "ishare_xattr_prefix_id",
            0x69,
            has_compat(compat::ISHARE_XATTRS),
            raw.ishare_xattr_prefix_id.into(),
        ),
        ("xattr_filter_reserved", 0x68, has_compat(compat::XATTR_FILTER), raw.xattr_filter_reserved.into()),
        ("sb_extslots", 0x0d, has(incompat::METABOX), raw.sb_extslots.into()),
    ];
    for (name, offset, allowed, value) in fields {
        if !allowed && value != 0 {
            let what = format!("{name} is {value}, and the feature that it belongs to is not set");
            strict.fault(&rules::SB_FIELD, field(offset), what);
        }
    }
    let usage = &mut strict.usage;
    if raw.rootnid_8b.get() != 0 {
        usage.incompat |= incompat::WIDE_ADDRESSES;
    }
    if raw.extra_devices.get() != 0 {
        usage.incompat |= incompat::DEVICE_TABLE;
    }
    if raw.xattr_prefix_count != 0 {
        usage.incompat |= incompat::XATTR_PREFIXES;
    }
    if raw.packed_nid.get() != 0 {
        usage.incompat |= incompat::FRAGMENTS;
    }
    if has_compat(compat::ISHARE_XATTRS) && raw.ishare_xattr_prefix_id >= raw.xattr_prefix_count {
        let what = format!("long prefix {} of {}", raw.ishare_xattr_prefix_id, raw.xattr_prefix_count);
        strict.fault(&rules::XATTR_PREFIX, field(0x69), what);
    }
}

/// Judges the extension slots, of which only the first has fields.
fn check_slots(strict: &Strict<'_>, slots: u64) -> Result<()> {
    let known = if strict.has_incompat(incompat::METABOX) { RawMetaboxSlot::LEN as u64 / 2 } else { 0 };
    let at = field(RawSuperblock::LEN as u64 + known);
    if slots > known && !strict.is_zero(at, slots - known)? {
        strict.fault(&rules::SB_RESERVED, at, "reserved bytes of the extension slots are not zero");
    }
    Ok(())
}

/// Judges the number of inodes.
pub(super) fn check_inodes(strict: &Strict<'_>, found: u64) {
    let inos = strict.raw.inos.get();
    if inos != 0 && inos != found {
        let what = format!("the number of inodes is {inos}, and the image has {found}");
        strict.fault(&rules::SB_INODES, field(0x10), what);
    }
}
