//! The options of `mkfs.erofs -E`, which are features of the format, and the bits of `--zfeature-bits`.

use super::mkfs::Mkfs;
use pagefold_control::error::{CliError, Result};
use pagefold_image::format::features::incompat;
use pagefold_image_build::{Dedupe, InodeForm};

/// A feature.
struct Feature {
    name: &'static str,
    /// Switches it on or off. The value is empty if there is none.
    set: fn(&mut Mkfs, bool, &str) -> Result<()>,
}

const FEATURES: &[Feature] = &[
    Feature { name: "48bit", set: |mkfs, on, _| mkfs.require_if(on, incompat::WIDE_ADDRESSES) },
    Feature { name: "all-fragments", set: set_fragments },
    Feature {
        name: "dedupe",
        set: |mkfs, on, _| {
            mkfs.build.dedupe = Some(if on { Dedupe::Chunks } else { Dedupe::Files });
            mkfs.require_if(on, incompat::DEDUPE)
        },
    },
    Feature { name: "force-chunk-indexes", set: |mkfs, on, _| set_chunk_indexes(mkfs, on) },
    Feature { name: "force-inode-blockmap", set: |mkfs, on, _| set_chunk_indexes(mkfs, !on) },
    Feature { name: "force-inode-compact", set: |mkfs, on, _| set_inodes(mkfs, on, InodeForm::Compact) },
    Feature { name: "force-inode-extended", set: |mkfs, on, _| set_inodes(mkfs, on, InodeForm::Extended) },
    // The builder decides about equal fragments.
    Feature { name: "fragdedupe", set: |_, _, value| one_of(value, &["", "inode", "full"]) },
    Feature { name: "fragments", set: set_fragments },
    Feature { name: "inline_data", set: set_inline_data },
    Feature { name: "noinline_data", set: |mkfs, on, value| set_inline_data(mkfs, !on, value) },
    Feature {
        name: "legacy-compress",
        set: |mkfs, on, _| {
            mkfs.build.further.form.full_indexes = on;
            Ok(())
        },
    },
    Feature {
        name: "nosbcrc",
        set: |mkfs, on, _| {
            mkfs.build.further.form.checksum = !on;
            Ok(())
        },
    },
    // The filters are always there: readers ignore what they do not know of them.
    Feature { name: "xattr-name-filter", set: |_, _, _| Ok(()) },
    Feature {
        name: "ztailpacking",
        set: |mkfs, on, _| {
            mkfs.build.no_tail_packing = !on;
            mkfs.require_if(on, incompat::ZTAILPACKING)
        },
    },
];

/// Features of mkfs.erofs that images of this builder cannot have.
const REFUSED: &[(&str, &str)] = &[
    ("dot-omitted", "directories keep their entry '.'; leave it out"),
    ("plain-xattr-prefixes", "prefixes of names lie where there is room; leave it out"),
];

/// The features of the bits of `--zfeature-bits`, from the lowest on.
const BITS: [&str; 8] = [
    "legacy-compress",
    "ztailpacking",
    "fragments",
    "all-fragments",
    "dedupe",
    "fragdedupe",
    "48bit",
    "dot-omitted",
];

/// Applies a list of features, each of which `^` switches off.
pub fn apply(mkfs: &mut Mkfs, list: &str) -> Result<()> {
    for word in list.split(',').filter(|word| !word.is_empty()) {
        let (on, rest) = word.strip_prefix('^').map_or((true, word), |rest| (false, rest));
        let (name, value) = rest.split_once('=').unwrap_or((rest, ""));
        if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name).filter(|_| on) {
            return Err(CliError::usage(format!("{name} is not possible: {why}")));
        }
        let is_refused = REFUSED.iter().any(|(refused, _)| *refused == name);
        match FEATURES.iter().find(|feature| feature.name == name) {
            Some(feature) => (feature.set)(mkfs, on, value)
                .map_err(|e| CliError::usage(format!("{name}: {}", e.message)))?,
            // It is switched off.
            None if is_refused => {}
            None => {
                let names: Vec<_> = FEATURES.iter().map(|feature| feature.name).collect();
                let what = format!("unknown feature '{name}'; there are {}", names.join(", "));
                return Err(CliError::usage(what));
            }
        }
    }
    Ok(())
}

/// Applies the features of bits.
pub fn apply_bits(mkfs: &mut Mkfs, bits: u64) -> Result<()> {
    if bits >> BITS.len() != 0 {
        return Err(CliError::usage(format!("there are {} bits", BITS.len())));
    }
    let on = (0..).zip(BITS).filter(|(bit, _)| bits >> bit & 1 != 0);
    on.map(|(_, name)| name).try_for_each(|name| apply(mkfs, name))
}

/// Whole files, up to a cluster, are fragments too, so both features are one.
fn set_fragments(mkfs: &mut Mkfs, on: bool, value: &str) -> Result<()> {
    if !value.is_empty() {
        let bytes = value.parse().map_err(|_| CliError::usage(format!("'{value}' is no number of bytes")))?;
        mkfs.packed_cluster_bytes = Some(bytes);
    }
    mkfs.build.no_fragments = !on;
    mkfs.require_if(on, incompat::FRAGMENTS)
}

fn set_chunk_indexes(mkfs: &mut Mkfs, on: bool) -> Result<()> {
    mkfs.has_chunk_indexes = on;
    Ok(())
}

fn set_inline_data(mkfs: &mut Mkfs, on: bool, _: &str) -> Result<()> {
    mkfs.build.further.form.inline_data = on;
    Ok(())
}

fn set_inodes(mkfs: &mut Mkfs, on: bool, form: InodeForm) -> Result<()> {
    mkfs.build.further.form.inodes = if on { form } else { InodeForm::Lossless };
    Ok(())
}

fn one_of(value: &str, possible: &[&str]) -> Result<()> {
    match possible.contains(&value) {
        true => Ok(()),
        false => Err(CliError::usage(format!("'{value}' is not one of {}", possible.join(" ").trim_start()))),
    }
}
