//! The features and algorithms that an image uses, compared with its bits.

use super::context::Strict;
use pagefold_image::format::config::Algorithm;
use pagefold_image::format::features::{compat, incompat};
use pagefold_image::format::superblock as disk;
use pagefold_image::{Address, rules};

/// Reports bits that nothing uses, once the whole image was read.
pub(super) fn check(strict: &mut Strict<'_>) {
    let at = |offset| Address::image(disk::OFFSET + offset);
    let raw = strict.raw;
    let unused = |table: &[pagefold_image::format::features::Feature], bits: u32| {
        let names = table.iter().filter(|feature| bits & feature.bit != 0).map(|feature| feature.name);
        names.collect::<Vec<_>>().join(", ")
    };
    // Records of algorithms are a use too; those that no cluster needs are reported below.
    let records = if raw.u1.get() != 0 { incompat::COMPR_CFGS } else { 0 };
    let bits = raw.feature_incompat.get() & !(strict.usage.incompat | records);
    // Times and the checksum are used in each image that says so, and the marks of other builders say nothing.
    let judged = compat::XATTR_FILTER | compat::SHARED_EA_IN_METABOX | compat::PLAIN_XATTR_PFX;
    let compat_bits = raw.feature_compat.get() & judged & !strict.usage.compat;
    if bits != 0 || compat_bits != 0 {
        let names = [unused(&incompat::ALL, bits), unused(&compat::ALL, compat_bits)];
        let names = names.iter().filter(|names| !names.is_empty()).cloned().collect::<Vec<_>>().join(", ");
        strict.fault(&rules::FEATURE_UNUSED, at(0x50), format!("features without use: {names}"));
    }
    let has_records = strict.has_incompat(incompat::COMPR_CFGS);
    let idle = if has_records { raw.u1.get() & !strict.usage.algorithms } else { 0 };
    // Linux wants an algorithm where files have indexes, although all extents may be plain.
    let is_needed = strict.usage.compressed && strict.usage.algorithms == 0 && idle.count_ones() == 1;
    if idle != 0 && !is_needed {
        let names = (0..16).filter(|n| idle & 1 << n != 0).filter_map(Algorithm::from_number);
        let names = names.map(|algorithm| format!("{algorithm:?}")).collect::<Vec<_>>().join(", ");
        strict.fault(&rules::ALGORITHM_UNUSED, at(0x54), format!("algorithms without use: {names}"));
    }
    if strict.usage.compressed && raw.u1.get() == 0 {
        strict.fault(&rules::SB_WINDOW, at(0x54), "u1 is 0, and there are compressed files");
    }
}
