//! `disk writeback`.

use super::page_ranges;
use super::pass::{self, PassArgs};
use crate::cli::numbers;
use clap::Args;
use pagefold_control::error::{CliError, Result};
use pagefold_control::protocol::Pages;
use pagefold_control::report::writeback::PassReport;
use pagefold_control::text;
use pagefold_page::size::Human;

/// The arguments of `disk writeback`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub struct WritebackArgs {
    #[command(flatten)]
    pub pass: PassArgs,
    /// Take the pages that no codec of the disk compresses. They are those of --huge that were tried with the codec of
    /// the highest priority
    #[arg(long, group = "which")]
    pub incompressible: bool,
    /// Take pages A to B, both included; page 0 is the first 4096 bytes of the device. Can be repeated
    #[arg(long, value_name = "A-B", group = "which")]
    pub pages: Vec<String>,
    /// Take all pages
    #[arg(long, group = "which")]
    pub all: bool,
}

/// Writes back pages of a disk, and prints the report, also if the pass ended early.
pub fn run(args: &WritebackArgs) -> Result<()> {
    let pages = args.pass.pages(|| {
        Ok(match () {
            _ if args.incompressible => Pages::Incompressible,
            _ if args.all => Pages::All,
            _ => Pages::Ranges(page_ranges::parse(&args.pages)?),
        })
    })?;
    let report = pass::run(
        &args.pass,
        ["written back", "written"],
        |client, signals, report_progress| client.write_back(&pages, signals, report_progress),
        summary,
    )?;
    match report.failure {
        None => Ok(()),
        Some(f) => Err(CliError::new(f.exit, format!("not all pages were written back: {f}"))),
    }
}

/// Formats the report on a pass as one line.
fn summary(r: &PassReport) -> String {
    let written = format!("{} written in {}", Human(r.written_bytes), text::time(r.elapsed_ns));
    let mut parts = vec![match r.written_back_pages {
        0 if r.changed_pages + r.failed_pages == 0 && r.failure.is_none() => {
            "none of these pages is in memory, so none was written back".to_string()
        }
        n => format!("wrote back {} pages ({written})", numbers::count(n)),
    }];
    parts.extend(numbers::counts([
        (r.changed_pages, "stayed: changed meanwhile"),
        (r.failed_pages, "stayed: their write failed"),
    ]));
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_says_what_stayed_and_why() {
        let mut report = PassReport {
            written_back_pages: 250,
            payload_bytes: 34_000_000,
            written_bytes: 34_708_992,
            failed_pages: 0,
            changed_pages: 12,
            elapsed_ns: 1_200_000_000,
            failure: None,
        };
        let text = "wrote back 250 pages (33.10 MiB written in 1.2 s); 12 stayed: changed meanwhile";
        assert_eq!(summary(&report), text);
        report.failed_pages = 3;
        assert!(summary(&report).ends_with("; 3 stayed: their write failed"));
        report = PassReport { written_back_pages: 0, failed_pages: 0, changed_pages: 0, ..report };
        assert!(summary(&report).starts_with("none of these pages"));
        report.failure = Some(CliError::failed("full"));
        assert!(summary(&report).starts_with("wrote back 0 pages"));
    }
}
