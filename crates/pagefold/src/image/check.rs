//! `image check`.

use super::findings;
use super::open::{ImageArgs, Then, ThreadsArgs};
use crate::cli::progress::Bar;
use crate::cli::{numbers, output, style};
use clap::Args;
use pagefold_control::error::Result;
use pagefold_control::report::image::CheckReport;
use pagefold_image::ReadAhead;
use pagefold_image::rules;
use pagefold_image_check::{CheckOptions, check};
use pagefold_page::size::Human;
use std::cell::RefCell;

/// The arguments of `image check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub image: ImageArgs,
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Judge what readers ignore, too: all of the rules below. For images that were just built
    #[arg(long)]
    pub strict: bool,
    /// Print JSON with all findings, and no progress
    #[arg(long)]
    pub json: bool,
}

/// The rules, for the long help.
pub fn rules_help() -> String {
    let rows = rules::ALL.iter().map(|rule| format!("  {:<17} {}\n", rule.name, rule.meaning));
    format!("Rules:\n{}", rows.collect::<String>())
}

/// Checks an image, prints the findings, and fails if there are errors.
pub fn run(args: &CheckArgs) -> Result<()> {
    let (image, whole) = args.image.open_whole(ReadAhead::Off, Then::Prints, None)?;
    let (threads, strict) = (args.threads.count(), args.strict);
    let options = CheckOptions { threads, strict, ..CheckOptions::default() };
    let bar = RefCell::new(Bar::new(!args.json));
    let checked = check(&image, &options, &|p| bar.borrow_mut().show_files(p.inodes, p.of_inodes, p.bytes));
    drop(bar);
    let report = checked.map_err(|e| args.image.failure(&e))?;
    let (errors, warnings) = (report.findings.errors(), report.findings.warnings());
    if args.json {
        output::stream_json(&CheckReport {
            inodes: report.inodes,
            names: report.names,
            decoded_bytes: report.bytes,
            complete: report.complete,
            findings: findings::json(&report.findings),
        })?;
    } else {
        output::text(&findings::report(&report.findings, style::stdout_colours()))?;
        let inodes = numbers::counted(report.inodes, "inode", "inodes");
        let (errors, warnings) =
            (numbers::counted(errors, "error", "errors"), numbers::counted(warnings, "warning", "warnings"));
        output::line(&format!("{inodes}, {} decoded: {errors}, {warnings}", Human(report.bytes)))?;
    }
    if errors == 0 && args.image.media.verity.digest.is_empty() && !args.json {
        output::note(
            "what can be read counts as correct: contents that are stored without compression have no checksum, and only \
             --digest finds a change of them",
        );
    }
    whole.finish(!args.json, || false)?;
    findings::check(&report.findings, "wrong with the image")
}
