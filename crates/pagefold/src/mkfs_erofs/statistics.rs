//! The statistics of an image as `dump.erofs -S` prints them, without its tables of sizes and extensions.

use pagefold_image::read::FileKind;
use pagefold_image::tree_stats::{self, TreeStats};
use pagefold_image::walk::Limits;
use pagefold_image::{Image, Result};

/// The kinds of files in the order of dump.erofs.
const KINDS: [(FileKind, &str); 7] = [
    (FileKind::Regular, "regular file"),
    (FileKind::Directory, "directory"),
    (FileKind::CharDevice, "char dev"),
    (FileKind::BlockDevice, "block dev"),
    (FileKind::Fifo, "FIFO file"),
    (FileKind::Socket, "SOCK file"),
    (FileKind::Symlink, "symlink file"),
];

/// Reads the metadata of all files, and prints counts and sums.
pub fn text(image: &Image) -> Result<String> {
    let stats = TreeStats::of_image(image, &Limits::default())?;
    let amount = |kind| {
        let found = tree_stats::KINDS.iter().position(|(known, _)| *known == kind);
        found.and_then(|at| stats.kinds.get(at)).copied().unwrap_or_default()
    };
    let total = stats.kinds.iter().fold(0u64, |sum, kind| sum.saturating_add(kind.count));
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        text.push_str(&format!("{:<39} {value}\n", format!("Filesystem {name}:")))
    };
    row("total file count", total.to_string());
    row("unknown type count", "0".into());
    for (kind, name) in KINDS {
        row(&format!("{name} count"), amount(kind).count.to_string());
    }
    let compressed = stats.layouts[2].count.saturating_add(stats.layouts[3].count);
    let uncompressed =
        stats.layouts.iter().fold(0u64, |sum, layout| sum.saturating_add(layout.count)) - compressed;
    row("compressed files", compressed.to_string());
    row("uncompressed files", uncompressed.to_string());
    let original = stats.kinds.iter().fold(0u64, |sum, kind| sum.saturating_add(kind.bytes));
    let stored = stats.clusters.bytes.saturating_add(stats.plain_bytes);
    let rate = if original > 0 { stored as f64 * 100.0 / original as f64 } else { 100.0 };
    row("total original file size", format!("{original} Bytes"));
    row("total file size", format!("{stored} Bytes"));
    row("compress rate", format!("{rate:.2}%"));
    Ok(text)
}
