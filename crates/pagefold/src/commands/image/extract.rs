//! `image extract`.

use super::open::{ImageArgs, failure, jobs, path_bytes};
use super::{findings, names, tar};
use crate::cli::progress::FilesBar;
use crate::cli::{chart, output};
use crate::failure::{Exit, Failure, Outcome};
use clap::{Args, ValueHint};
use pagefold_image::ReadAhead;
use pagefold_image::extract::{ExtractError, ExtractOptions, ExtractReport, extract};
use pagefold_page::size::{self, Human};
use pagefold_sys::SysError;
use pagefold_sys::beneath::{self, Folder};
use pagefold_sys::signal::Termination;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// `image extract`.
#[derive(Debug, Args)]
pub struct ExtractArgs {
    #[command(flatten)]
    pub image: ImageArgs,
    /// Directory to extract into: made if it does not exist, refused if it is not empty. With --tar: a file or
    /// directory in the image
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath, required_unless_present = "tar")]
    pub dir: Option<PathBuf>,
    /// Files and directories in the image [default: all]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Write a POSIX tar archive to standard output instead
    #[arg(long, conflicts_with_all = ["privileged", "no_owner", "no_xattrs", "no_times", "overwrite", "json", "jobs"])]
    pub tar: bool,
    /// Threads [default: the machine's]
    #[arg(long, short = 'j', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: Option<u16>,
    /// Make devices, set-user-ID and set-group-ID bits, and attributes of the system (security.*, trusted.*)
    /// too: only for images that you trust. Without, they are left out, and counted
    #[arg(long)]
    pub privileged: bool,
    /// Do not set owners and groups. Only root can, and does
    #[arg(long)]
    pub no_owner: bool,
    /// Do not set extended attributes and access control lists
    #[arg(long)]
    pub no_xattrs: bool,
    /// Do not set times
    #[arg(long)]
    pub no_times: bool,
    /// Most bytes to write [default: nine tenths of what is free; with --tar into a pipe, 3072 times the image, and
    /// 1 GiB at least]
    #[arg(long, value_name = "SIZE")]
    pub max_bytes: Option<String>,
    /// Most files to make
    #[arg(long, value_name = "N", default_value_t = 1 << 24)]
    pub max_inodes: u64,
    /// Extract into a directory that is not empty, and replace files there
    #[arg(long)]
    pub overwrite: bool,
    /// Print JSON with exact numbers, and no progress
    #[arg(long)]
    pub json: bool,
}

/// Extracts, and says what was left out or failed.
pub fn run(args: &ExtractArgs) -> Outcome<()> {
    if args.tar {
        return tar::run(args);
    }
    let Some(dir) = &args.dir else { return Err(Failure::usage("which directory to extract into?")) };
    let max_bytes = args.max_bytes.as_deref().map(size::parse).transpose();
    let options = ExtractOptions {
        jobs: jobs(args.jobs),
        privileged: args.privileged,
        owners: !args.no_owner,
        xattrs: !args.no_xattrs,
        times: !args.no_times,
        max_bytes: max_bytes.map_err(|e| Failure::usage(format!("--max-bytes: {e}")))?,
        max_inodes: args.max_inodes,
        overwrite: args.overwrite,
    };
    let image = args.image.open(ReadAhead::Off)?;
    let paths: Vec<Vec<u8>> = args.paths.iter().map(|path| path_bytes(path).to_vec()).collect();
    // Before the directory is made, so that a mistake in a path leaves nothing behind.
    let all_there = image.root().and_then(|_| paths.iter().try_for_each(|path| image.locate(path).map(drop)));
    all_there.map_err(|e| failed(args, dir, e.into()))?;
    let target = target(dir)?;
    beneath::lift_open_files();
    let signals = Termination::listen()?;
    let cancelled = AtomicBool::new(false);
    let bar = RefCell::new(FilesBar::new(!args.json));
    let extracted = extract(&image, &target, &paths, &options, &cancelled, &|p| {
        if signals.take().is_some() {
            cancelled.store(true, Ordering::Relaxed);
        }
        bar.borrow_mut().show(p.files, p.of_files, p.bytes);
    });
    bar.borrow().end();
    let report = extracted.map_err(|e| failed(args, dir, e))?;
    if args.json {
        findings::print_json(head_json(&report), &report.findings)?;
    } else {
        tell(&report, args.privileged)?;
    }
    match (report.interrupted, report.findings.errors()) {
        (false, 0) => Ok(()),
        (true, _) => Err(Failure::failed(format!(
            "interrupted: {} there and complete, the others are missing",
            chart::counted(report.files, "file is", "files are")
        ))),
        (false, n) => Err(Failure::failed(format!(
            "{} could not be extracted, or not with all that belongs to it; the rest is there",
            chart::counted(n, "file", "files")
        ))),
    }
}

/// The directory, made if it is not there; above it everything must be.
fn target(dir: &Path) -> Outcome<Folder> {
    let shown = names::escaped(path_bytes(dir));
    match std::fs::create_dir(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Failure::io(format!("making the directory {shown}"), &e)),
    }
    Folder::open(dir)
        .map_err(|e: SysError| Failure::from(SysError::new(format!("{} {shown}", e.what), e.errno)))
}

fn failed(args: &ExtractArgs, dir: &Path, error: ExtractError) -> Failure {
    let dir = names::escaped(path_bytes(dir));
    match error {
        ExtractError::Image(e) => failure(&args.image.image.display().to_string(), &e),
        ExtractError::Target(e) => e.into(),
        ExtractError::NotEmpty => Failure::new(Exit::Busy, format!("{dir}: {}", ExtractError::NotEmpty)),
        ExtractError::Limit { what } => {
            Failure::failed(format!("{what}; what was extracted before is in {dir}"))
        }
    }
}

fn tell(report: &ExtractReport, privileged: bool) -> Outcome<()> {
    let links = match report.links {
        0 => String::new(),
        n => format!(", {}", chart::counted(n, "hard link", "hard links")),
    };
    let files = chart::counted(report.files, "file", "files");
    output::line(&format!("{files}{links}, {}", Human(report.bytes)))?;
    for (n, one, many) in [
        (report.skipped_devices, "device was", "devices were"),
        (report.skipped_set_id, "file's set-ID bits were", "files' set-ID bits were"),
        (report.skipped_xattrs, "attribute of the system was", "attributes of the system were"),
    ] {
        if n > 0 && !privileged {
            output::note(&format!("{} left out; --privileged keeps such", chart::counted(n, one, many)));
        }
    }
    findings::tell(&report.findings);
    Ok(())
}

fn head_json(report: &ExtractReport) -> Map<String, Value> {
    let fields = [
        ("files", json!(report.files)),
        ("links", json!(report.links)),
        ("written_bytes", json!(report.bytes)),
        ("skipped_devices", json!(report.skipped_devices)),
        ("skipped_set_id", json!(report.skipped_set_id)),
        ("skipped_xattrs", json!(report.skipped_xattrs)),
        ("unsupported_xattrs", json!(report.unsupported_xattrs)),
        ("interrupted", json!(report.interrupted)),
    ];
    fields.map(|(name, value)| (name.to_string(), value)).into_iter().collect()
}
