//! `image extract`.

use super::open::{ImageArgs, Then, ThreadsArgs, path_bytes, path_failure};
use super::{extract_total, fakeroot, findings, names, worker};
use crate::cli::progress::Bar;
use crate::cli::{numbers, output, values};
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::report::image::ExtractReport as JsonReport;
use pagefold_control::text;
use pagefold_image::ReadAhead;
use pagefold_image::extract::{ExtractError, ExtractOptions, ExtractReport, extract};
use pagefold_page::size::Human;
use pagefold_sys::SysError;
use pagefold_sys::beneath::{self, Folder};
use pagefold_sys::confine::{Creates, path_of};
use pagefold_sys::respawn::End;
use pagefold_sys::signal::{Termination, unblock_termination};
use pagefold_sys::userns;
use serde::Serialize;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The arguments of `image extract`.
#[derive(Debug, Args)]
pub struct ExtractArgs {
    #[command(flatten)]
    pub image: ImageArgs,
    /// Directory to extract into. Created if it does not exist, refused if it is not empty (see --overwrite)
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Files and directories in the image to extract [default: all]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Also create what needs privileges; only for trusted images. These are device nodes, set-user-ID and set-group-ID
    /// bits, and the attributes security.* and trusted.*. Without this option they are left out and counted
    #[arg(long)]
    pub privileged: bool,
    /// Do not set owners and groups, which only root does
    #[arg(long)]
    pub no_owner: bool,
    /// Do not set extended attributes and access control lists
    #[arg(long)]
    pub no_xattrs: bool,
    /// Do not set times
    #[arg(long)]
    pub no_times: bool,
    /// Most bytes to write [default: nine tenths of the free space]
    #[arg(long, value_name = "SIZE")]
    pub max_bytes: Option<String>,
    /// Most files to create
    #[arg(long, value_name = "N", default_value_t = 1 << 24)]
    pub max_inodes: u64,
    /// Extract into a directory that is not empty, and replace what is in the way. Where the image has a file, also a
    /// directory with all below it
    #[arg(long)]
    pub overwrite: bool,
    /// Print JSON with exact numbers, and no progress
    #[arg(long)]
    pub json: bool,
}

/// Extracts, and reports files that were left out or failed.
pub fn run(args: &ExtractArgs) -> Result<()> {
    let max_bytes = args.max_bytes.as_deref().map(|text| values::bytes("--max-bytes", text));
    let options = ExtractOptions {
        threads: args.threads.count(),
        privileged: args.privileged,
        owners: !args.no_owner,
        xattrs: !args.no_xattrs,
        times: !args.no_times,
        max_bytes: max_bytes.transpose()?,
        max_inodes: args.max_inodes,
        overwrite: args.overwrite,
    };
    if args.privileged {
        let instead = format!("pagefold image tar IMAGE | tar -C '{}' -x", args.dir.display());
        fakeroot::refuse("would set the real owners, and cannot make devices", &instead)?;
    }
    let is_made = make_target(&args.dir)?;
    let signals = Termination::listen()?;
    let work = || {
        // Until it listens for them itself.
        unblock_termination()?;
        extract_into(args, &options)
    };
    let end = worker::run(Some(&signals), || Ok(()), |_| work())?;
    if is_made && end != End::Code(0) {
        // A wrong path leaves nothing behind, and a directory with files stays.
        let _ = std::fs::remove_dir(&args.dir);
    }
    if args.privileged && end != End::Code(0) && !args.json && !userns::has_system_users() {
        output::note(
            "a user namespace creates no device nodes and no attributes trusted.*; without --privileged they are left out \
             and counted",
        );
    }
    worker::finish(end)
}

/// Extracts into the directory. The process is confined to it before it parses the image.
fn extract_into(args: &ExtractArgs, options: &ExtractOptions) -> Result<()> {
    let creates = Creates { folder: args.dir.clone(), privileged: args.privileged };
    beneath::raise_open_file_limit();
    let (image, whole) = args.image.open_whole(ReadAhead::Off, Then::Creates(&creates), None)?;
    let paths: Vec<Vec<u8>> = args.paths.iter().map(|path| path_bytes(path).to_vec()).collect();
    let all_exist = image.root().and_then(|_| paths.iter().try_for_each(|path| image.locate(path).map(drop)));
    all_exist.map_err(|e| failed(args, e.into()))?;
    let target = open_target(&args.dir)?;
    let signals = Termination::listen()?;
    let cancelled = AtomicBool::new(false);
    // Walking over the tree takes time: only if somebody watches.
    let is_watched = Bar::is_wanted() && !args.json;
    let total = is_watched.then(|| extract_total::total(&image, &paths, args.max_inodes)).flatten();
    let bar = RefCell::new(Bar::new(is_watched));
    let extracted = extract(&image, &target, &paths, options, &cancelled, &|p| {
        if signals.take().is_some() {
            cancelled.store(true, Ordering::Relaxed);
        }
        bar.borrow_mut().show_extracted(p.files, p.content_bytes, total);
    });
    drop(bar);
    let report = extracted.map_err(|e| failed(args, e))?;
    if args.json {
        output::stream_json(&json(&report))?;
    } else {
        print_report(&report, args.privileged)?;
    }
    if paths.is_empty() && !report.interrupted {
        whole.finish(!args.json, || signals.take().is_some())?;
    }
    match (report.interrupted, report.findings.errors()) {
        (false, 0) => Ok(()),
        (true, _) => Err(CliError::failed(format!(
            "interrupted: {} complete, the others are missing",
            text::counted(report.counts.files, "file is", "files are")
        ))),
        (false, n) => {
            let files = text::counted(n, "file", "files");
            let message = format!("{files} could not be extracted completely; the others were extracted");
            Err(findings::failure(report.findings.damage(), message))
        }
    }
}

/// Creates the directory if it is missing, and returns whether it was; its parent must exist.
fn make_target(dir: &Path) -> Result<bool> {
    let shown = names::escaped(path_bytes(dir));
    match std::fs::create_dir(dir) {
        Ok(()) => Ok(true),
        // Whether it is a directory.
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => open_target(dir).map(|_| false),
        Err(e) => Err(path_failure(format!("creating the directory '{shown}'"), &e)),
    }
}

/// Opens the directory, which may be the root of this process by now.
fn open_target(dir: &Path) -> Result<Folder> {
    let shown = names::escaped(path_bytes(dir));
    Folder::open(path_of(dir)).map_err(|e: SysError| match e.errno {
        libc::ENOTDIR => CliError::usage(format!("'{shown}' is not a directory")),
        _ => CliError::from(SysError::new(format!("{} '{shown}'", e.what), e.errno)),
    })
}

fn failed(args: &ExtractArgs, error: ExtractError) -> CliError {
    let dir = names::escaped(path_bytes(&args.dir));
    match error {
        ExtractError::Image(e) => args.image.failure(&e),
        ExtractError::Target(e) => e.into(),
        ExtractError::NotEmpty => CliError::new(Exit::Busy, format!("{dir}: {}", ExtractError::NotEmpty)),
        ExtractError::Limit { what } => {
            CliError::failed(format!("{what}; the files extracted before are in {dir}"))
        }
    }
}

fn print_report(report: &ExtractReport, privileged: bool) -> Result<()> {
    let links = numbers::if_any(report.counts.links, |n| {
        format!(", {}", text::counted(n, "hard link", "hard links"))
    });
    let files = text::counted(report.counts.files, "file", "files");
    output::line(&format!("{files}{links}, {}", Human(report.counts.bytes)))?;
    for (n, one, many) in [
        (report.counts.skipped_devices, "device was", "devices were"),
        (report.counts.skipped_set_id, "file's set-ID bits were", "files' set-ID bits were"),
        (report.counts.skipped_xattrs, "attribute of the system was", "attributes of the system were"),
    ] {
        if n > 0 && !privileged {
            output::note(&format!("{} left out; --privileged includes them", text::counted(n, one, many)));
        }
    }
    if report.counts.skipped_set_id > 0 && privileged {
        let files =
            text::counted(report.counts.skipped_set_id, "file's set-ID bits were", "files' set-ID bits were");
        output::note(&format!("{files} left out, because the owner or group is not that of the image"));
    }
    findings::print_text(&report.findings);
    if report.counts.unmapped_owners > 0 {
        let files = text::counted(report.counts.unmapped_owners, "file belongs", "files belong");
        output::note(&format!(
            "{files} to this user, because the user namespace does not map the owner; --no-owner leaves owners out, and \
             'unshare --map-auto' and 'podman unshare' map more users"
        ));
    }
    Ok(())
}

fn json(report: &ExtractReport) -> JsonReport<impl Serialize> {
    JsonReport {
        files: report.counts.files,
        links: report.counts.links,
        copied_links: report.counts.copied_links,
        written_bytes: report.counts.bytes,
        skipped_devices: report.counts.skipped_devices,
        skipped_set_id: report.counts.skipped_set_id,
        skipped_xattrs: report.counts.skipped_xattrs,
        unsupported_xattrs: report.counts.unsupported_xattrs,
        interrupted: report.interrupted,
        findings: findings::json(&report.findings),
    }
}
