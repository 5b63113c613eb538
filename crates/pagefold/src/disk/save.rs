//! `disk save`.
//!
//! The command opens the file and gives it its name, with the rights of its user; the server writes it. To standard output,
//! the server writes to a socket, and this process copies: so the server holds no descriptor of the user's, and notices
//! the end of this process at once.

use super::find::{self, Found};
use crate::cli::progress::Bar;
use crate::cli::{numbers, output};
use crate::image::target::Target;
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Result};
use pagefold_control::named_files::NamedFiles;
use pagefold_control::report::saved::SaveReport;
use pagefold_control::text;
use pagefold_page::size::Human;
use pagefold_sys::blockuse::{self, BlockUse};
use pagefold_sys::signal::Termination;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a server that writes to a socket looks whether the save is to end.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(200);
const COPY_LEN: usize = 128 << 10;

/// The arguments of `disk save`.
#[derive(Debug, Args)]
pub struct SaveArgs {
    /// Name, device or mount point of the disk
    #[arg(value_name = "DISK", value_hint = ValueHint::AnyPath)]
    pub disk: String,
    /// File to write; - is standard output
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Print JSON with exact numbers, and no progress
    #[arg(long)]
    pub json: bool,
}

/// Saves a disk, and prints the report.
pub fn run(args: &SaveArgs) -> Result<()> {
    let is_output = args.file == Path::new("-");
    if is_output && args.json {
        return Err(CliError::usage(
            "--json needs standard output, where '-' writes the saved disk; name a file",
        ));
    }
    if is_output && std::io::stdout().is_terminal() {
        return Err(CliError::usage("a saved disk is not printed on a terminal; name a file, or use a pipe"));
    }
    let report = if is_output { to_output(args)? } else { to_file(args)? };
    if report.lost_pages > 0 {
        let lost = numbers::counted(report.lost_pages, "page of the disk is", "pages of the disk are");
        output::note(&format!("{lost} lost, and so in the saved disk: reading them is an error"));
    }
    match (is_output, args.json) {
        (true, _) => output::note(&summary(&report)),
        (false, true) => output::json(&report)?,
        (false, false) => output::line(&summary(&report))?,
    }
    Ok(())
}

fn to_file(args: &SaveArgs) -> Result<SaveReport> {
    let target = Target::open_private(&args.file)?;
    let file = target.file().try_clone().map_err(|e| target.failed(&e))?;
    let report = match target.signals() {
        Some(signals) => save(args, file, signals),
        None => save(args, file, &Termination::listen()?),
    }?;
    target.complete()?;
    sync_folder(&args.file)?;
    Ok(report)
}

/// Writes the new name to the medium.
fn sync_folder(file: &Path) -> Result<()> {
    let Ok(real) = file.canonicalize() else { return Ok(()) };
    if !real.is_file() {
        return Ok(());
    }
    let folder = real.parent().unwrap_or(Path::new("/"));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| CliError::io(format!("writing the name of '{}'", file.display()), &e))
}

fn to_output(args: &SaveArgs) -> Result<SaveReport> {
    let failed = |e| CliError::io("writing to standard output", &e);
    let signals = Termination::listen()?;
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    theirs.set_write_timeout(Some(SOCKET_TIMEOUT)).map_err(failed)?;
    let copier = std::thread::Builder::new().name("copy".into()).spawn(move || copy(ours));
    let copier = copier.map_err(failed)?;
    let report = save(args, File::from(OwnedFd::from(theirs)), &signals);
    if report.is_err() && !copier.is_finished() {
        // Nobody reads, and the end of this process ends the copy.
        return report;
    }
    // All descriptors of the other end are closed now, so the copy ends.
    let copied = copier.join().map_err(|_| CliError::failed("the thread that writes has panicked"))?;
    match (report, copied) {
        (Ok(report), Ok(())) => Ok(report),
        (_, Err(e)) => Err(failed(e)),
        (Err(e), Ok(())) => Err(e),
    }
}

/// Copies what the server writes to standard output.
fn copy(mut from: UnixStream) -> std::io::Result<()> {
    let mut buffer = vec![0; COPY_LEN];
    let mut out = std::io::stdout().lock();
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return out.flush(),
            Ok(read) => out.write_all(&buffer[..read])?,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Lets the server save the disk to an open file.
fn save(args: &SaveArgs, file: File, signals: &Termination) -> Result<SaveReport> {
    if let Found::Running(_, dir) = find::find(&args.disk)?
        && let Some(device) = dir.read_state().and_then(|state| state.loop_device())
        && let Err(e) = flush(&device)
    {
        output::note(&format!(
            "{e}: what the kernel caches of {} is not in the saved disk",
            device.display()
        ));
    }
    let mut files = NamedFiles::default();
    files.add(args.file.clone(), Ok((file, args.file.clone())));
    let mut bar = Bar::new(!args.json);
    find::with_client(&args.disk, |client| {
        client.save(&files, signals, &mut |p| bar.show_pass(p, ["saved", "written"]))
    })
}

/// Lets the kernel write what it caches of a device, and of file systems that are mounted from it.
fn flush(device: &Path) -> Result<()> {
    for claim in blockuse::claims(device)? {
        if let BlockUse::Mounted { mount_point } = claim {
            let failed =
                |e: std::io::Error| CliError::io(format!("flushing '{}'", mount_point.display()), &e);
            let root = File::open(&mount_point).map_err(failed)?;
            rustix::fs::syncfs(&root).map_err(|e| failed(e.into()))?;
        }
    }
    let synced = File::open(device).and_then(|device| device.sync_all());
    synced.map_err(|e| CliError::io(format!("flushing {}", device.display()), &e))
}

/// Formats the report as one line.
fn summary(r: &SaveReport) -> String {
    let pages = numbers::counted(r.pages, "page", "pages");
    format!("saved {pages} to {} in {}", Human(r.file_bytes), text::time(r.elapsed_ns))
}
