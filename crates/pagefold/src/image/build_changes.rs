//! The changes that `image build` makes to the metadata of a source.

use super::build_args::BuildArgs;
use super::build_source::failure;
use super::further::Owners;
use pagefold_control::error::{CliError, Result};
use pagefold_image_build::source::Scanned;
use pagefold_image_build::{Metadata, XattrChanges};

/// Applies the options that replace hard links, owners, times and attributes. Files are not newer than `build_time`, seconds
/// since 1970, if that is of the environment, as builds that can be repeated have it (reproducible-builds.org), unless all
/// have one time.
pub fn apply(
    scanned: &mut Scanned,
    args: &BuildArgs,
    build_time: Option<i64>,
    xattrs: &XattrChanges,
) -> Result<()> {
    if args.separates_links() {
        scanned.tree.separate_links().map_err(failure)?;
    }
    if let Some(config) = &args.further.fs_config {
        config.apply(&mut scanned.tree).map_err(failure)?;
    }
    let limit = build_time.filter(|_| args.further.build_time.is_none());
    change_metadata(scanned, args, limit)?;
    xattrs.apply(&mut scanned.tree).map_err(failure)
}

fn change_metadata(scanned: &mut Scanned, args: &BuildArgs, limit: Option<i64>) -> Result<()> {
    let owners = args.owners();
    if owners == Owners::default() && args.mtime.or(limit).is_none() {
        return Ok(());
    }
    let mut too_large = None;
    let changed = scanned.tree.change_metadata(|metadata| {
        metadata.uid = owners.uid.unwrap_or(metadata.uid);
        metadata.gid = owners.gid.unwrap_or(metadata.gid);
        if let Err(id) = metadata.shift_owners(owners.uid_offset, owners.gid_offset) {
            too_large = Some(id);
        }
        match (args.mtime, limit) {
            (Some(seconds), _) => set_time(metadata, seconds),
            // The second of the limit itself is no newer only without a fraction.
            (None, Some(limit)) if metadata.mtime.seconds >= limit => set_time(metadata, limit),
            _ => {}
        }
    });
    changed.map_err(failure)?;
    match too_large {
        None => Ok(()),
        Some(id) => Err(CliError::usage(format!(
            "--uid-offset: user or group {id} would become more than 4294967294, the greatest number"
        ))),
    }
}

fn set_time(metadata: &mut Metadata, seconds: i64) {
    metadata.mtime.seconds = seconds;
    metadata.mtime.nanoseconds = 0;
}
