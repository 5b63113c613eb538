//! Notes of `image build` on standard error: files and attributes that the image does not have, or that may surprise.

use super::build_args::BuildArgs;
use super::names;
use crate::cli::output;
use pagefold_control::text;
use pagefold_image_build::source::{NestedOverlay, OverlayFound, Scanned, UnreadableFile, UnreadableXattr};
use pagefold_image_build::{Options, RunningKernel, XattrChanges, XattrFilter};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Says what could not be read.
pub fn unreadable(scanned: &Scanned) {
    let note_more = |more: u64, one: &str, many: &str| {
        if more > 0 {
            output::note(&format!("not read: {} more", text::counted(more, one, many)));
        }
    };
    for UnreadableFile { path, reason } in scanned.unreadable.iter() {
        output::note(&format!("not read: '{}': {reason}", path.display()));
    }
    note_more(scanned.unreadable.count_unlisted(), "path", "paths");
    for UnreadableFile { path, reason } in scanned.zero_filled.iter() {
        output::note(&format!("not read in full: '{}': {reason}", path.display()));
    }
    note_more(scanned.zero_filled.count_unlisted(), "path in full", "paths in full");
    for UnreadableXattr { path, name, reason } in scanned.unreadable_xattrs.iter() {
        let attribute = match name.as_slice() {
            b"" => "the attributes".to_string(),
            name => format!("the attribute '{}'", names::escaped(name)),
        };
        output::note(&format!("not read: {attribute} of '{}': {reason}", path.display()));
    }
    note_more(scanned.unreadable_xattrs.count_unlisted(), "attribute", "attributes");
}

/// Says which labels of the host were left out, and that an overlay mount would act on what the source has of overlayfs.
pub fn attributes(scanned: &Scanned, args: &BuildArgs) {
    if scanned.host_labels > 0 {
        let labels = text::counted(scanned.host_labels, "label", "labels");
        output::note(&format!(
            "{labels} of this host left out, such as security.selinux; --xattrs-include '*' keeps all attributes"
        ));
    }
    let OverlayFound { whiteouts, xattrs } = scanned.overlay;
    // With --whiteouts overlay the user says that the source is a layer.
    let is_layer = args.whiteouts.is_some_and(|whiteouts| whiteouts.is_overlay());
    if args.xattrs.nested() == NestedOverlay::Keep && !is_layer && whiteouts + xattrs > 0 {
        output::note(&format!(
            "the source has {} and {} of overlayfs, which hide files when the image is a lower layer of an overlay mount; \
             --escape-overlay keeps them for a mount inside, --strip-overlay leaves them out, and --whiteouts overlay \
             says that this is such a layer",
            text::counted(whiteouts, "whiteout", "whiteouts"),
            text::counted(xattrs, "attribute", "attributes"),
        ));
    }
}

/// Says which sources of an image without contents cannot follow it in one file: their last block is not whole. The kernel would
/// read other bytes of the sources behind them, and our readers would miss the rest of the last one. With `device=` all is
/// read, so such sources are not refused. `devices` are the sources, their lengths, and those of their blocks, bytes.
pub fn partial_devices(devices: &[(PathBuf, u64, u32)]) {
    let block_bytes = devices.iter().map(|(_, _, block_bytes)| *block_bytes).min().unwrap_or(1);
    for (path, len_bytes, _) in devices {
        if !len_bytes.is_multiple_of(block_bytes.into()) {
            output::note(&format!(
                "'{}' does not end with a whole block: mount with device= for each source, or write zeroes behind it before \
                 the sources follow the image in one file (truncate -s %{block_bytes})",
                path.display()
            ));
        }
    }
}

/// Says which patterns of attributes matched nothing. `*` means all attributes, of which there may be none.
pub fn unmatched_xattrs(filter: &XattrFilter, changes: &XattrChanges) {
    for (option, patterns) in [("--xattrs-include", &filter.include), ("--xattrs-exclude", &filter.exclude)] {
        for pattern in patterns.iter().filter(|pattern| pattern.text() != "*" && !pattern.has_matched()) {
            output::note(&format!("{option} '{}' matched nothing", pattern.text()));
        }
    }
    for set in changes.set.iter().filter(|set| set.is_unmatched()) {
        output::note(&format!("--set-xattr '{}' matched nothing", set.text()));
    }
}

/// Says which of the algorithms that the user named the running kernel does not have. The image is of use nevertheless:
/// `image mount` needs no kernel with EROFS.
pub fn refused(kernel: &RunningKernel, options: &Options) {
    let algorithms = options.compressions().into_iter().map(|compression| compression.method.algorithm());
    let reasons: BTreeSet<_> = algorithms.filter_map(|algorithm| kernel.refuses(algorithm)).collect();
    for reason in reasons {
        output::note(&format!("the running kernel cannot mount the image itself: {reason}"));
    }
}
