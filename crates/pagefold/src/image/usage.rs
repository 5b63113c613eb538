//! The part of `image show IMAGE` that says where the image's bytes went, as JSON and as text.
//!
//! On a terminal a bar follows each part. In a pipe or a file there are only the figures.

use super::names::{self, escaped};
use crate::cli::chart;
use crate::cli::page::Page;
use pagefold_image::usage::{FileUsage, Usage, UsagePart, WORST_LEN_BYTES};
use pagefold_page::size::Human;
use serde_json::{Map, Value, json};

/// The usage as JSON; null if there was too little memory for it.
pub fn json(usage: Option<&Usage>) -> Value {
    let Some(usage) = usage else { return Value::Null };
    let part = |part: UsagePart| (part.name().to_string(), json!(usage.part_bytes(part)));
    json!({
        "parts": Value::Object(UsagePart::ALL.into_iter().map(part).collect()),
        "total_bytes": usage.total_bytes(),
        "fragment_bytes": usage.fragment_bytes,
        "shared_bytes": usage.shared_bytes,
        "saved_bytes": usage.saved_bytes,
        "largest": usage.largest.iter().map(file_json).collect::<Vec<_>>(),
        "worst": usage.worst.iter().map(file_json).collect::<Vec<_>>(),
    })
}

fn file_json(file: &FileUsage) -> Value {
    let mut object = Map::new();
    names::put(&mut object, "path", &file.path);
    object.insert("len_bytes".into(), json!(file.len_bytes));
    object.insert("stored_bytes".into(), json!(file.stored_bytes));
    object.insert("fraction".into(), json!(file.fraction()));
    Value::Object(object)
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
            let figures = format!("{}  {:>6}  {bar}", size(bytes), percent(bytes, usage.total_bytes()));
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
        let part = percent(file.stored_bytes, file.len_bytes);
        let path = escaped(&file.path);
        page.push(&format!("  {}  {}  {part:>9}  {path}\n", size(file.stored_bytes), size(file.len_bytes)));
    }
}

fn size(bytes: u64) -> String {
    format!("{:>11}", Human(bytes).to_string())
}

/// A part of a whole in percent; `-` if there is no whole.
fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_string(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
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
        assert_eq!(json(None), Value::Null);
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
