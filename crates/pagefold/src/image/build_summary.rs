//! The summary of `image build`, as text and as JSON.

use super::names;
use crate::cli::{numbers, output};
use pagefold_control::error::Result;
use pagefold_control::report::image::{
    BuildReport, CompressionReport, ContentsReport, ListedReport, SlowFile, StoredReport, UnreadableFile,
    UnreadableXattr,
};
use pagefold_image::format::features::KernelVersion;
use pagefold_image_build::source::{self, NestedOverlay, OverlayFound, Scanned};
use pagefold_image_build::{Compression, Listed, RunningKernel, Stored, Summary};
use pagefold_page::size::Human;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A finished image.
pub struct Built<'a> {
    /// Its path.
    pub out: &'a Path,
    pub summary: &'a Summary,
    /// The first kernel that mounts it, which may be older than the one that it was built for.
    pub needs: Option<KernelVersion>,
    pub scanned: &'a Scanned,
    /// The running kernel, if the image is for that one.
    pub running: Option<&'a RunningKernel>,
    /// The reason for the compression, unless the user named it, or named a kernel.
    pub reason: Option<String>,
    /// The treatment of an overlay mount inside.
    pub nested: NestedOverlay,
    /// Whether a list says which files come first.
    pub has_list: bool,
    /// Threads that were wanted.
    pub threads: usize,
}

/// Prints the summary as text.
pub fn print(built: &Built<'_>) -> Result<()> {
    let &Built { summary, scanned, .. } = built;
    if output::is_quiet() {
        return Ok(());
    }
    let (out, needs) = (built.out.display(), built.needs.unwrap_or(summary.target.0));
    let [image, content] = [summary.image_bytes, summary.content_bytes()].map(Human);
    let inodes = numbers::counted(summary.inodes, "file or directory", "files and directories");
    let source = match (summary.content_bytes(), summary.inodes) {
        (0, 0..=1) => "an empty tree".to_string(),
        (0, _) => format!("{inodes} without contents"),
        _ => format!("{content} in {inodes}"),
    };
    let ratio = ratio(summary).map_or(String::new(), |ratio| format!(" ({ratio:.2}x)"));
    output::line(&format!("{out}: {image} from {source}{ratio}, for Linux {needs} or later"))?;
    let row = |name: &str, text: String| output::line(&format!("  {name:<12} {text}"));
    if let Some(kernel) = built.running {
        let because = built.reason.as_ref().map_or(String::new(), |reason| format!("; {reason}"));
        row("kernel", format!("the running one, {}{because}", kernel.release()))?;
    }
    for (compression, stored) in &summary.stored {
        row(&name(compression), stored_text(stored))?;
    }
    row("metadata", Human(summary.metadata_bytes).to_string())?;
    let together = format!(", stored together in {}", Human(summary.fragments.stored_bytes));
    for (name, stored, what) in [
        ("fragments", &summary.fragments, &*together),
        ("duplicates", &summary.duplicates, " with the contents of another one"),
        ("shared parts", &summary.shared_parts, " that other files have too"),
    ] {
        if stored.files > 0 {
            row(name, format!("{}{what}", contents_text(stored)))?;
        }
    }
    if built.has_list {
        let Listed { found, missing } = summary.listed;
        let paths = numbers::counted(found, "path", "paths");
        row("sorted", format!("{paths} of the list found, {} not", numbers::count(missing)))?;
    }
    if summary.threads < built.threads {
        let wanted = numbers::counted(built.threads as u64, "thread", "threads");
        row("threads", format!("{} of {wanted}, so that memory suffices", summary.threads))?;
    }
    if scanned.unreadable.count() > 0 {
        let left_out = numbers::counted(scanned.unreadable.count(), "path", "paths");
        row("left out", format!("{left_out} that could not be read"))?;
    }
    if scanned.zero_filled.count() > 0 {
        let filled = numbers::counted(scanned.zero_filled.count(), "path", "paths");
        row("zeroes", format!("in {filled}, in place of contents that could not be read"))?;
    }
    if scanned.unreadable_xattrs.count() > 0 {
        let left_out = numbers::counted(scanned.unreadable_xattrs.count(), "attribute", "attributes");
        row("left out", format!("{left_out} that could not be read"))?;
    }
    let OverlayFound { whiteouts, xattrs } = scanned.overlay;
    let treated = match built.nested {
        NestedOverlay::Keep => None,
        NestedOverlay::Escape => Some("escaped"),
        NestedOverlay::Strip => Some("left out"),
    };
    if let Some(treated) = treated.filter(|_| whiteouts + xattrs > 0) {
        let whiteouts = numbers::counted(whiteouts, "whiteout", "whiteouts");
        let xattrs = numbers::counted(xattrs, "attribute", "attributes");
        row("overlayfs", format!("{whiteouts} and {xattrs} {treated}"))?;
    }
    if scanned.dropped_xattrs > 0 {
        let dropped = numbers::counted(scanned.dropped_xattrs, "attribute", "attributes");
        output::note(&format!(
            "{dropped} left out: images have user, trusted, security and access lists only"
        ));
    }
    Ok(())
}

/// How many times as long as the image the contents are; `None` if there are none.
fn ratio(summary: &Summary) -> Option<f64> {
    let content_bytes = Some(summary.content_bytes()).filter(|bytes| *bytes > 0)?;
    Some(content_bytes as f64 / summary.image_bytes.max(1) as f64)
}

fn name(compression: &Option<Compression>) -> String {
    compression.map_or("plain".into(), |compression| compression.to_string())
}

fn stored_text(stored: &Stored) -> String {
    if stored.files == 0 {
        // The packed file has the ends of files of other compressions.
        return format!("ends of other files, stored in {}", Human(stored.stored_bytes));
    }
    format!("{}, stored in {}", contents_text(stored), Human(stored.stored_bytes))
}

fn contents_text(stored: &Stored) -> String {
    format!("{} in {}", Human(stored.content_bytes), numbers::counted(stored.files, "file", "files"))
}

fn stored_json(&Stored { files, content_bytes, stored_bytes }: &Stored) -> StoredReport {
    StoredReport { files, content_bytes, stored_bytes }
}

/// Prints the summary as JSON.
pub fn print_json(built: &Built<'_>) -> Result<()> {
    let &Built { summary, scanned, .. } = built;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let file = |file: &source::UnreadableFile| {
        let (path, path_hex) = path_json(&file.path);
        UnreadableFile { path, path_hex, reason: file.reason.clone() }
    };
    let slow_file = |(path, elapsed): &(PathBuf, Duration)| {
        let (path, path_hex) = path_json(path);
        SlowFile { path, path_hex, seconds: elapsed.as_secs_f64() }
    };
    let stored = summary.stored.iter();
    let slowest = summary.slowest.iter();
    let Stored { files, content_bytes, .. } = summary.shared_parts;
    let Listed { found, missing } = summary.listed;
    output::json(&BuildReport {
        kernel: summary.target.to_string(),
        kernel_release: built.running.map(|kernel| kernel.release().into()),
        compression_reason: built.reason.clone(),
        threads: summary.threads,
        threads_wanted: built.threads,
        inodes: summary.inodes,
        directories: summary.directories,
        content_bytes: summary.content_bytes(),
        image_bytes: summary.image_bytes,
        metadata_bytes: summary.metadata_bytes,
        ratio: ratio(summary).unwrap_or(0.0),
        stored: stored
            .map(|(c, stored)| CompressionReport { compression: name(c), stored: stored_json(stored) })
            .collect(),
        fragments: stored_json(&summary.fragments),
        duplicates: stored_json(&summary.duplicates),
        shared_parts: ContentsReport { files, content_bytes },
        listed: built.has_list.then_some(ListedReport { found, missing }),
        slowest: slowest.map(slow_file).collect(),
        unreadable_count: scanned.unreadable.count(),
        unreadable: scanned.unreadable.iter().map(|file| text(&file.path)).collect(),
        unreadable_reasons: scanned.unreadable.iter().map(file).collect(),
        zero_filled_count: scanned.zero_filled.count(),
        zero_filled: scanned.zero_filled.iter().map(file).collect(),
        unreadable_xattrs_count: scanned.unreadable_xattrs.count(),
        unreadable_xattrs: scanned.unreadable_xattrs.iter().map(unreadable_xattr).collect(),
        dropped_xattrs: scanned.dropped_xattrs,
        host_labels: scanned.host_labels,
        overlay_whiteouts: scanned.overlay.whiteouts,
        overlay_xattrs: scanned.overlay.xattrs,
    })
}

fn unreadable_xattr(xattr: &source::UnreadableXattr) -> UnreadableXattr {
    let (path, path_hex) = path_json(&xattr.path);
    let (name, name_hex) = names::json(&xattr.name);
    UnreadableXattr { path, path_hex, name, name_hex, reason: xattr.reason.clone() }
}

fn path_json(path: &Path) -> (String, Option<String>) {
    names::json(path.as_os_str().as_bytes())
}
