//! The part of `image show IMAGE` that says where the image's bytes went, as JSON and as text.
//!
//! On a terminal a bar follows each part. In a pipe or a file there are only the figures.

use super::names::{self, escaped};
use crate::cli::page::Page;
use crate::cli::{chart, numbers};
use pagefold_control::report::image::{FileUsageReport, UsageReport};
use pagefold_image::usage::{FileUsage, Usage, UsagePart, WORST_LEN_BYTES};
use pagefold_page::size::Human;

/// The usage as JSON.
pub fn json(usage: &Usage) -> UsageReport {
    let part = |part: UsagePart| (part.name().to_string(), usage.part_bytes(part));
    UsageReport {
        parts: UsagePart::ALL.into_iter().map(part).collect(),
        total_bytes: usage.total_bytes(),
        fragment_bytes: usage.fragment_bytes,
        shared_bytes: usage.shared_bytes,
        saved_bytes: usage.saved_bytes,
        largest: usage.largest.iter().map(file_json).collect(),
        worst: usage.worst.iter().map(file_json).collect(),
    }
}

fn file_json(file: &FileUsage) -> FileUsageReport {
    let (path, path_hex) = names::json(&file.path);
    let (len_bytes, stored_bytes, fraction) = (file.len_bytes, file.stored_bytes, file.fraction());
    FileUsageReport { path, path_hex, len_bytes, stored_bytes, fraction }
}

/// The name of a part in a row.
fn label(part: UsagePart) -> String {
    match part {
        UsagePart::Lz4 | UsagePart::Lzma | UsagePart::Deflate | UsagePart::Zstd => {
            format!("{} clusters", part.name())
        }
        UsagePart::Plain | UsagePart::Inline => format!("{} contents", part.name()),
        UsagePart::Unused => "padding, unused".to_string(),
        _ => part.name().to_string(),
    }
}

/// Adds the usage to a page, with bars if `bars`.
pub fn add_text(page: &mut Page, usage: Option<&Usage>, bars: bool) {
    page.heading("Usage");
    let Some(usage) = usage else {
        page.row("left out", "too little memory to find shared bytes; raise it with --memory");
        return;
    };
    let most = UsagePart::ALL.into_iter().map(|part| usage.part_bytes(part)).max().unwrap_or(0);
    for part in UsagePart::ALL {
        let bytes = usage.part_bytes(part);
        if bytes > 0 {
            let bar = if bars { chart::bar(bytes, most) } else { String::new() };
            let figures =
                format!("{}  {:>6}  {bar}", size(bytes), numbers::percent(bytes, usage.total_bytes()));
            page.row(&label(part), figures.trim_end());
        }
    }
    page.row("total", &size(usage.total_bytes()));
    let contents = [("in fragments", usage.fragment_bytes), ("shared", usage.shared_bytes)];
    for (name, bytes) in contents.into_iter().filter(|(_, bytes)| *bytes > 0) {
        page.row(name, &format!("{}  of contents", size(bytes)));
    }
    if usage.saved_bytes > 0 {
        page.row("saved by sharing", &size(usage.saved_bytes));
    }
    files_text(page, "Files that take most", &usage.largest);
    files_text(
        page,
        &format!("Files of {} or more that compress worst", Human(WORST_LEN_BYTES)),
        &usage.worst,
    );
}

fn files_text(page: &mut Page, heading: &str, files: &[FileUsage]) {
    if files.is_empty() {
        return;
    }
    page.heading(heading);
    page.push(&format!("  {:>11}  {:>11}  {:>9}  PATH\n", "STORED", "LENGTH", "OF LENGTH"));
    for file in files {
        let part = numbers::percent(file.stored_bytes, file.len_bytes);
        let path = escaped(&file.path);
        page.push(&format!("  {}  {}  {part:>9}  {path}\n", size(file.stored_bytes), size(file.len_bytes)));
    }
}

fn size(bytes: u64) -> String {
    format!("{:>11}", Human(bytes).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(usage: Option<&Usage>, bars: bool) -> String {
        let mut page = Page::new(false, 18);
        add_text(&mut page, usage, bars);
        page.into_text()
    }

    #[test]
    fn without_memory_the_page_says_what_is_left_out() {
        assert!(text(None, true).contains("raise it with --memory"));
    }

    #[test]
    fn bars_are_in_proportion_and_only_for_people() {
        let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../image/tests/fixtures/app.erofs");
        let image = pagefold_image::Image::open_file(image.as_ref(), pagefold_image::Options::default());
        let limits = pagefold_image::walk::Limits::default();
        let stats = pagefold_image::tree_stats::TreeStats::of_image(&image.unwrap(), &limits).unwrap();
        let usage = stats.usage.unwrap();
        let (plain, with_bars) = (text(Some(&usage), false), text(Some(&usage), true));
        assert!(!plain.contains('#'));
        assert!(plain.lines().all(|line| line.trim_end() == line), "{plain}");
        let without = with_bars
            .replace('#', "")
            .lines()
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect::<String>();
        assert_eq!(without, plain);
        let mut bars: Vec<_> = with_bars.lines().map(|line| line.matches('#').count()).collect();
        bars.sort_unstable();
        assert_eq!(bars.last(), Some(&40));
        let rows = UsagePart::ALL.into_iter().filter(|part| usage.part_bytes(*part) > 0).count();
        assert_eq!(bars.iter().filter(|len| **len > 0).count(), rows);
    }
}
