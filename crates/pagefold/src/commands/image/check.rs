//! `image check`.

use super::findings;
use super::open::{ImageArgs, failure, jobs};
use crate::cli::progress::FilesBar;
use crate::cli::{chart, output};
use crate::failure::{Failure, Outcome};
use clap::Args;
use pagefold_image::ReadAhead;
use pagefold_image::check::{CheckOptions, check};
use pagefold_page::size::Human;
use serde_json::json;
use std::cell::RefCell;

/// `image check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub image: ImageArgs,
    /// Threads [default: the machine's]
    #[arg(long, short = 'j', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: Option<u16>,
    /// Print JSON with all findings, and no progress
    #[arg(long)]
    pub json: bool,
}

/// Checks, and fails if something is wrong.
pub fn run(args: &CheckArgs) -> Outcome<()> {
    let image = args.image.open(ReadAhead::Off)?;
    let options = CheckOptions { jobs: jobs(args.jobs), ..CheckOptions::default() };
    let bar = RefCell::new(FilesBar::new(!args.json));
    let checked = check(&image, &options, &|p| bar.borrow_mut().show(p.inodes, p.of_inodes, p.bytes));
    bar.borrow().end();
    let report = checked.map_err(|e| failure(&args.image.image.display().to_string(), &e))?;
    let (errors, warnings) = (report.findings.errors(), report.findings.warnings());
    if args.json {
        let fields = [
            ("inodes", json!(report.inodes)),
            ("names", json!(report.names)),
            ("decoded_bytes", json!(report.bytes)),
            ("complete", json!(report.complete)),
        ];
        let head = fields.map(|(name, value)| (name.to_string(), value)).into_iter().collect();
        findings::print_json(head, &report.findings)?;
    } else {
        output::text(&findings::text(&report.findings, output::stdout_colours()))?;
        let inodes = chart::counted(report.inodes, "inode", "inodes");
        let (errors, warnings) =
            (chart::counted(errors, "error", "errors"), chart::counted(warnings, "warning", "warnings"));
        output::line(&format!("{inodes}, {} decoded: {errors}, {warnings}", Human(report.bytes)))?;
    }
    match errors {
        0 => Ok(()),
        n => {
            let things = chart::counted(n, "thing is", "things are");
            Err(Failure::failed(format!("{things} wrong with the image")))
        }
    }
}
