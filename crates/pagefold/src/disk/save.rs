//! `disk save`.
//!
//! The command opens the file and gives it its name, with the rights of its user; the server writes it. To standard output
//! and to a pipe, the server writes to a socket, and this process copies: so the server holds no descriptor of the user's, waits for none
//! that blocks, and notices the end of this process at once.

use super::bucket;
use super::chain;
use super::find::{self, Found};
use super::freeze::Freezer;
use super::incremental;
use crate::cli::progress::Bar;
use crate::cli::{numbers, output, values};
use crate::image::open::path_failure;
use crate::image::target::Target;
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::named_files::NamedFiles;
use pagefold_control::protocol::{IncrementalSave, SaveOptions};
use pagefold_control::report::saved::{SaveMoment, SaveReport};
use pagefold_control::text;
use pagefold_page::size::Human;
use pagefold_sys::blockuse::{self, BlockUse};
use pagefold_sys::signal::Termination;
use std::fs::{File, FileType, OpenOptions};
use std::io::{IsTerminal, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// How often a restore is looked at.
const RESTORE_INTERVAL: Duration = Duration::from_millis(200);
/// How often a server that writes to a socket looks whether the save is to end.
pub const SOCKET_TIMEOUT: Duration = Duration::from_millis(200);
const COPY_LEN: usize = 128 << 10;

/// The arguments of `disk save`.
#[derive(Debug, Args)]
pub struct SaveArgs {
    /// Name, device or mount point of the disk
    #[arg(value_name = "DISK", value_hint = ValueHint::AnyPath)]
    pub disk: String,
    /// File to write, or s3://BUCKET/KEY, gs://BUCKET/OBJECT or az://CONTAINER/BLOB. - is standard output
    #[arg(value_name = "TARGET", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Write only what has changed since the last save to FILE, if the disk knows it. FILE is always the newest save; the
    /// ones before it, which it needs, stay beside it as FILE.ID. The first save, one after the server was replaced, and
    /// one in 32 is a full save, which removes these
    #[arg(long)]
    pub incremental: bool,
    /// Do not freeze the file system on the disk for the moment of the save. A mount of the restored disk then replays
    /// its log, as after a power failure
    #[arg(long)]
    pub no_freeze: bool,
    /// Most bytes per second that are written, such as 100M/s [default: no limit]. The disk stays fast meanwhile. Pages that
    /// change before the save has come to them are written at once
    #[arg(long, value_name = "SIZE/s")]
    pub rate: Option<String>,
    /// Print JSON with exact numbers, and no progress
    #[arg(long)]
    pub json: bool,
}

/// Saves a disk, and prints the report.
pub fn run(args: &SaveArgs) -> Result<()> {
    let is_output = args.file == Path::new("-") || is_piped_output(&args.file);
    if is_output && args.json {
        return Err(CliError::usage(
            "--json needs standard output, where '-' writes the saved disk; name a file",
        ));
    }
    if is_output && args.incremental {
        return Err(CliError::usage(
            "--incremental needs a file, beside which the saves before it stay; name one",
        ));
    }
    rate(args)?;
    let bucket = bucket::location(&args.file);
    if let Some(location) = &bucket {
        bucket::name_of_target(location)?;
    }
    wait_for_restore(args)?;
    let file_type = args.file.metadata().map(|metadata| metadata.file_type()).ok();
    let mut freezer = prepare(args)?;
    let report = match (&bucket, file_type) {
        (Some(location), _) => bucket::to_bucket(args, &mut freezer, location)?,
        _ if is_output => to_output(args, &mut freezer)?,
        (None, Some(file_type)) if args.incremental && !file_type.is_file() && !file_type.is_dir() => {
            return Err(CliError::usage("--incremental needs a file, beside which the saves before it stay"));
        }
        (None, Some(file_type)) if !file_type.is_file() && !file_type.is_dir() => {
            let stream = open_stream(&args.file, file_type)?;
            to_stream(args, &mut freezer, stream, &format!("'{}'", args.file.display()))?
        }
        _ if args.incremental => incremental::to_file(args, &mut freezer)?,
        _ => to_file(args, &mut freezer)?,
    };
    if report.figures.lost_pages > 0 {
        let lost =
            numbers::counted(report.figures.lost_pages, "page of the disk is", "pages of the disk are");
        output::note(&format!("{lost} lost, and so in the saved disk: reading them is an error"));
    }
    match (is_output, args.json) {
        (true, _) => output::note(&summary(&report, &freezer)),
        (false, true) => output::json(&report)?,
        (false, false) => output::line(&summary(&report, &freezer))?,
    }
    Ok(())
}

/// The rate in bytes per second; 0: no limit.
fn rate(args: &SaveArgs) -> Result<u64> {
    args.rate.as_deref().map_or(Ok(0), |text| values::bytes_per_s("--rate", text))
}

/// Waits until the restore of the disk has ended: a save needs all pages. Nothing is frozen meanwhile.
fn wait_for_restore(args: &SaveArgs) -> Result<()> {
    let mut is_noted = false;
    loop {
        let report = find::ask(&args.disk, |client| client.show())?;
        let Some(restoring) = report.restoring else { return Ok(()) };
        let from = restoring.path.display();
        let refused = if let Some(first) = &restoring.first_unreadable {
            let pages = numbers::counted(restoring.unreadable_pages, "page", "pages");
            format!("{pages} of it cannot be read, the first: {first}; write or discard these")
        } else if restoring.waits_for_memory {
            format!("its memory is full; raise the limit: disk set {} mem_limit=SIZE", report.name)
        } else {
            if !std::mem::replace(&mut is_noted, true) {
                let text = super::show::restored_part(&restoring);
                output::note(&format!("waiting for the restore of the disk from '{from}': {text}"));
            }
            std::thread::sleep(RESTORE_INTERVAL);
            continue;
        };
        return Err(CliError::new(
            Exit::Busy,
            format!("the disk is still being restored from '{from}', but {refused}"),
        ));
    }
}

/// Prepares the freeze, while this process has one thread.
fn prepare(args: &SaveArgs) -> Result<Freezer> {
    match find::find(&args.disk)? {
        Found::Running(_, dir) => Freezer::prepare(&dir, &args.file, !args.no_freeze),
        // A note was printed about it.
        Found::Dead => Err(CliError::new(Exit::NotFound, format!("disk '{}' is gone", args.disk))),
    }
}

fn to_file(args: &SaveArgs, freezer: &mut Freezer) -> Result<SaveReport> {
    // An incremental save that goes on from the file would lose the files that it needs.
    let _locked = incremental::lock(&args.file)?;
    Target::remove_abandoned(&args.file);
    let target = Target::open_private(&args.file)?;
    let file = target.file().try_clone().map_err(|e| target.failed(&e))?;
    let report = match target.signals() {
        Some(signals) => save(args, freezer, file, None, signals),
        None => save(args, freezer, file, None, &Termination::listen()?),
    }?;
    let former = chain::former_names(&args.file);
    incremental::lock_new(&target);
    target.complete()?;
    sync_folder(&args.file)?;
    incremental::remove_former(&args.file, &former);
    Ok(report)
}

/// Writes the new name to the medium.
pub fn sync_folder(file: &Path) -> Result<()> {
    let Ok(real) = file.canonicalize() else { return Ok(()) };
    if !real.is_file() {
        return Ok(());
    }
    let folder = real.parent().unwrap_or(Path::new("/"));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| CliError::io(format!("writing the name of '{}'", file.display()), &e))
}

/// Whether the file is the pipe of standard output, such as `/dev/stdout`: the report goes elsewhere then.
fn is_piped_output(file: &Path) -> bool {
    let output = rustix::fs::fstat(std::io::stdout());
    let (Ok(named), Ok(output)) = (file.metadata(), output) else { return false };
    named.file_type().is_fifo() && (named.dev(), named.ino()) == (output.st_dev, output.st_ino)
}

fn to_output(args: &SaveArgs, freezer: &mut Freezer) -> Result<SaveReport> {
    let output = std::io::stdout();
    if output.is_terminal() {
        return Err(on_terminal());
    }
    let output = output.as_fd().try_clone_to_owned();
    let output = output.map_err(|e| CliError::io("writing to standard output", &e))?;
    to_stream(args, freezer, output.into(), "standard output")
}

/// Opens a pipe or a character device; a block device is refused. It comes before signals are blocked, because opening a
/// pipe waits for its reader.
fn open_stream(path: &Path, file_type: FileType) -> Result<File> {
    let shown = path.display();
    if file_type.is_block_device() {
        return Err(CliError::usage(format!(
            "'{shown}' is a block device; a saved disk is a file: name one, or write '-' through a program"
        )));
    }
    let opened = OpenOptions::new().write(true).open(path);
    let file = opened.map_err(|e| path_failure(format!("writing '{shown}'"), &e))?;
    if file.is_terminal() {
        return Err(on_terminal());
    }
    Ok(file)
}

/// The error of a command that would write a saved disk to a terminal.
pub fn on_terminal() -> CliError {
    CliError::usage("a saved disk is not printed on a terminal; name a file, or use a pipe")
}

/// Lets the server write to a socket, and copies that to `output`, which may block for any time.
fn to_stream(args: &SaveArgs, freezer: &mut Freezer, output: File, shown: &str) -> Result<SaveReport> {
    let failed = |e| CliError::io(format!("writing to {shown}"), &e);
    let signals = Termination::listen()?;
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    theirs.set_write_timeout(Some(SOCKET_TIMEOUT)).map_err(failed)?;
    let (sender, copied) = sync_channel(1);
    let copier = std::thread::Builder::new().name("copy".into()).spawn(move || {
        // Before the socket is closed: the server's error about that says less.
        let _ = sender.send(copy(&ours, output));
    });
    copier.map_err(failed)?;
    let report = save(args, freezer, File::from(OwnedFd::from(theirs)), None, &signals);
    if report.is_err() {
        // If nobody reads, the end of this process ends the copy.
        return match copied.try_recv() {
            Ok(Err(e)) => Err(failed(e)),
            _ => report,
        };
    }
    // All descriptors of the other end are closed now, so the copy ends as soon as the output takes the rest.
    loop {
        match copied.recv_timeout(SOCKET_TIMEOUT) {
            Ok(Ok(())) => return report,
            Ok(Err(e)) => return Err(failed(e)),
            Err(RecvTimeoutError::Timeout) if signals.take().is_some() => {
                return Err(CliError::failed("interrupted: the saved disk was not written to its end"));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(CliError::failed("the thread that writes has panicked"));
            }
        }
    }
}

/// Copies what the server writes.
fn copy(mut from: &UnixStream, mut to: File) -> std::io::Result<()> {
    let mut buffer = vec![0; COPY_LEN];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => to.write_all(&buffer[..read])?,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Lets the server save the disk to an open file. The file system on it is frozen from before the request to the moment.
pub fn save(
    args: &SaveArgs,
    freezer: &mut Freezer,
    file: File,
    incremental: Option<&IncrementalSave>,
    signals: &Termination,
) -> Result<SaveReport> {
    if let Found::Running(_, dir) = find::find(&args.disk)?
        && let Some(device) = dir.read_state().and_then(|state| state.loop_device())
        && let Err(e) = flush(&device)
    {
        output::note(&format!(
            "{e}: what the kernel caches of {} is not in the saved disk",
            device.display()
        ));
    }
    let options = SaveOptions { incremental: incremental.cloned(), rate_bytes_per_s: rate(args)? };
    let mut files = NamedFiles::default();
    files.add(args.file.clone(), Ok((file, args.file.clone())));
    let mut bar = Bar::new(!args.json);
    let report = find::with_client_or(&args.disk, "the disk was not saved; try again", |client| {
        freezer.freeze(signals)?;
        let report = client.save(&files, &options, signals, &mut |p| {
            if p.total_pages > 0 {
                freezer.thaw();
            }
            if !freezer.is_frozen() {
                bar.show_pass(p, ["saved", "written"]);
            }
        });
        freezer.thaw();
        report
    })?;
    Ok(SaveReport { moment: freezer.moment(), ..report })
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
fn summary(r: &SaveReport, freezer: &Freezer) -> String {
    let pages = numbers::counted(r.figures.pages, "page", "pages");
    let state = match (&r.moment, freezer.frozen_at()) {
        (SaveMoment { frozen_ns: Some(time_ns), .. }, Some(at)) => {
            format!("'{}' was frozen for {}", at.display(), text::time(*time_ns))
        }
        (SaveMoment { not_frozen, .. }, _) => {
            format!("consistent as after a power failure: {}", not_frozen.as_deref().unwrap_or_default())
        }
    };
    let kind = match (&r.figures.parent, &r.full_because) {
        (Some(_), _) => "; incremental".to_string(),
        (None, Some(reason)) => format!("; full, because {reason}"),
        (None, None) => String::new(),
    };
    let (len, time) = (Human(r.figures.file_bytes), text::time(r.elapsed_ns));
    format!("saved {pages} to {len} in {time}{kind}; {state}")
}
