//! `disk save --incremental`: a file that always has the newest save, and beside it those that it needs.
//!
//! Before the new file gets its name, the present one gets a second name, FILE.ID with its identity, by which the new one
//! finds it. So at each moment FILE and the files that it names are a complete chain; a command that fails leaves at most a
//! second name too many. When the server cannot go on from FILE, or the chain is long enough, the save is a full one, and
//! the former chain is removed when that has its name.

use super::chain::{self, ChainFile, hex};
use super::freeze::Freezer;
use super::save::{SaveArgs, save, sync_folder};
use crate::cli::output;
use crate::image::target::Target;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::protocol::{IncrementalSave, ParentSave};
use pagefold_control::report::saved::SaveReport;
use pagefold_saved::CHAIN_FILES_MAX;
use pagefold_sys::signal::Termination;
use rustix::fs::FlockOperation;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The chain of a file that exists, and the name that its newest file gets.
struct Present {
    chain: Vec<ChainFile>,
    /// The second name of the newest file.
    kept_name: OsString,
}

/// Saves a disk to a file, incrementally if possible.
pub fn to_file(args: &SaveArgs, freezer: &mut Freezer) -> Result<SaveReport> {
    let _locked = lock(&args.file)?;
    let former = chain::former_names(&args.file);
    Target::remove_abandoned(&args.file);
    let target = Target::open_private(&args.file)?;
    let file = target.file().try_clone().map_err(|e| target.failed(&e))?;
    let (present, full_because) = match present(&args.file) {
        Ok(present) => (Some(present), None),
        Err(reason) => (None, Some(reason)),
    };
    let parent = present.as_ref().map(Present::as_parent);
    let incremental = IncrementalSave { parent };
    let signals = match target.signals() {
        Some(signals) => signals,
        None => &Termination::listen()?,
    };
    let mut report = save(args, freezer, file, Some(&incremental), signals)?;
    report.full_because = full_because.or(report.full_because.take());
    let present = present.filter(|_| report.figures.parent.is_some());
    if let Some(present) = &present {
        present.check(&args.file)?;
    }
    lock_new(&target);
    target.complete()?;
    sync_folder(&args.file)?;
    if report.figures.parent.is_none() {
        remove_former(&args.file, &former);
    }
    Ok(report)
}

/// Locks a new file before it has its name: no other save goes on from it while the former ones are removed.
pub fn lock_new(target: &Target) {
    // Nobody else has it, and some file systems have no locks.
    let _ = rustix::fs::flock(target.file(), FlockOperation::NonBlockingLockExclusive);
}

/// Locks a file that exists against another save to it, which fails then.
pub fn lock(path: &Path) -> Result<Option<File>> {
    // A pipe must not be waited for; other errors show when the file is written.
    let Some(file) = path.is_file().then(|| File::open(path).ok()).flatten() else { return Ok(None) };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let message = format!("another save to '{}' runs; try again later", path.display());
            Err(CliError::new(Exit::Busy, message))
        }
        // It may have been replaced before it was locked.
        _ if !is_same(&file, path.metadata()) => Err(replaced(path)),
        // Some file systems have no locks.
        _ => Ok(Some(file)),
    }
}

/// The chain that the save can go on from, whose newest file has its second name already, or the reason why the save has to
/// be a full one.
fn present(path: &Path) -> Result<Present, String> {
    if !path.exists() {
        return Err("the file did not exist".into());
    }
    let chain = chain::open(path).map_err(|e| e.message)?;
    let bytes = |file: &ChainFile| file.ends.totals.len_bytes;
    let (full, incremental) = chain.split_last().ok_or("the file is empty")?;
    if chain.len() >= CHAIN_FILES_MAX {
        return Err(format!("the chain had {CHAIN_FILES_MAX} files"));
    }
    if incremental.iter().map(bytes).sum::<u64>() >= bytes(full) {
        return Err("the incremental saves had become as long as the full one".into());
    }
    let id = hex(&chain[0].ends.head.id());
    let real = path.canonicalize().map_err(|e| e.to_string())?;
    let name = real.file_name().ok_or("the file has no name")?;
    let present = Present { kept_name: chain::second_name(name, &id), chain };
    present.keep(&real).map_err(|e| format!("the file could not get a second name: {e}"))?;
    Ok(present)
}

impl Present {
    fn newest(&self) -> &ChainFile {
        &self.chain[0]
    }

    fn as_parent(&self) -> ParentSave {
        let ends = &self.newest().ends;
        ParentSave {
            id: ends.head.id(),
            digest: ends.totals.digest,
            depth: ends.head.depth(),
            name: PathBuf::from(&self.kept_name),
        }
    }

    /// Gives the newest file its second name, on the medium too.
    fn keep(&self, real: &Path) -> std::io::Result<()> {
        let kept = real.with_file_name(&self.kept_name);
        match std::fs::hard_link(real, &kept) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists && !self.is_newest(&kept) => {
                // A copy; no file of the chain has this identity but the newest.
                std::fs::remove_file(&kept)?;
                std::fs::hard_link(real, &kept)?;
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            linked => linked?,
        }
        File::open(real.parent().unwrap_or(Path::new("/")))?.sync_all()
    }

    /// Whether the newest file has this name; a link to it is another file.
    fn is_newest(&self, path: &Path) -> bool {
        is_same(&self.newest().file, path.symlink_metadata())
    }

    /// Fails if the file or its second name is another file now.
    fn check(&self, path: &Path) -> Result<()> {
        let real = path.canonicalize().unwrap_or_default();
        match self.is_newest(&real) && self.is_newest(&real.with_file_name(&self.kept_name)) {
            true => Ok(()),
            false => Err(replaced(path)),
        }
    }
}

fn replaced(path: &Path) -> CliError {
    let message = format!("'{}' was replaced meanwhile; save the disk again", path.display());
    CliError::new(Exit::Busy, message)
}

fn is_same(file: &File, there: std::io::Result<Metadata>) -> bool {
    let (Ok(there), Ok(file)) = (there, file.metadata()) else { return false };
    (there.dev(), there.ino()) == (file.dev(), file.ino())
}

/// Removes the files that the former file at `path` needed, and its second name. Others stay, whatever their names are: they
/// may belong to a file that was renamed or copied.
pub fn remove_former(path: &Path, former: &[PathBuf]) {
    let Ok(real) = path.canonicalize() else { return };
    let Some(name) = real.file_name() else { return };
    for former in former
        .iter()
        .filter(|former| former.file_name().is_some_and(|found| chain::is_second_name(name, found)))
    {
        match std::fs::remove_file(former) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                output::note(&format!("'{}' is not needed any more, and stays: {e}", former.display()));
            }
            _ => {}
        }
    }
}
