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
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Digits of an identity in a name.
const ID_DIGITS: usize = 32;

/// The chain of a file that exists, and the name that its newest file gets.
struct Present {
    chain: Vec<ChainFile>,
    /// The second name of the newest file.
    kept_name: OsString,
}

/// Saves a disk to a file, incrementally if possible.
pub fn to_file(args: &SaveArgs, freezer: &mut Freezer) -> Result<SaveReport> {
    let _locked = lock(&args.file)?;
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
    target.complete()?;
    sync_folder(&args.file)?;
    remove_former(&args.file, present.as_ref());
    Ok(report)
}

/// Locks a file that exists against another incremental save to it, which fails then.
fn lock(path: &Path) -> Result<Option<File>> {
    // A pipe must not be waited for; other errors show when the file is written.
    let Some(file) = path.is_file().then(|| File::open(path).ok()).flatten() else { return Ok(None) };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let message = format!("another incremental save to '{}' runs; try again later", path.display());
            Err(CliError::new(Exit::Busy, message))
        }
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
    let kept_name = [name.as_bytes(), b".", id.as_bytes()].concat();
    let present = Present { chain, kept_name: OsString::from_vec(kept_name) };
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

    fn is_newest(&self, path: &Path) -> bool {
        let (Ok(there), Ok(newest)) = (path.metadata(), self.newest().file.metadata()) else { return false };
        (there.dev(), there.ino()) == (newest.dev(), newest.ino())
    }

    /// Fails if the file or its second name is another file now.
    fn check(&self, path: &Path) -> Result<()> {
        let kept = path.canonicalize().map(|real| real.with_file_name(&self.kept_name)).unwrap_or_default();
        match self.is_newest(path) && self.is_newest(&kept) {
            true => Ok(()),
            false => {
                let shown = path.display();
                Err(CliError::new(
                    Exit::Busy,
                    format!("'{shown}' was replaced meanwhile; save the disk again"),
                ))
            }
        }
    }
}

/// Removes the second names beside a file that are not those of its chain, whose newest parent is `present`.
fn remove_former(path: &Path, present: Option<&Present>) {
    let Ok(real) = path.canonicalize() else { return };
    let (Some(name), Some(folder)) = (real.file_name(), real.parent()) else { return };
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let needed = |kept: &OsStr| {
        present.is_some_and(|present| {
            let chain = present.chain.iter().skip(1).map(|file| file.path.file_name());
            kept == present.kept_name || chain.flatten().any(|needed| needed == kept)
        })
    };
    for entry in entries.flatten() {
        let found = entry.file_name();
        if is_second_name(name, &found)
            && !needed(&found)
            && let Err(e) = std::fs::remove_file(entry.path())
        {
            output::note(&format!("'{}' is not needed any more, and stays: {e}", entry.path().display()));
        }
    }
}

/// Whether `found` is a second name of a save to a file of this name.
fn is_second_name(name: &OsStr, found: &OsStr) -> bool {
    let id = found.as_bytes().strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"."));
    id.is_some_and(|id| {
        id.len() == ID_DIGITS && id.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_an_identity_are_second_names() {
        let id = "0123456789abcdef0123456789abcdef";
        let is = |found: &str| is_second_name("work.saved".as_ref(), found.as_ref());
        assert!(is(&format!("work.saved.{id}")));
        for other in [id, "work.saved", "work.saved.", "work.saved.bak", &format!("work.saved{id}")] {
            assert!(!is(other), "{other}");
        }
        assert!(!is(&format!("work.saved.{id}0")) && !is(&format!("work.saved.{}", id.to_uppercase())));
        assert!(!is(&format!("other.saved.{id}")));
    }
}
