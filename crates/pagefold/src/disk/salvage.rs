//! `disk saved --salvage`: a new saved disk of what verifies of a damaged one.
//!
//! It goes to standard output, so a restore can read it at once, and nothing is renamed after this process is confined. The
//! process opens the files of the chain as far as their first bytes, of a fixed form, lead; `pagefold_saved` does the rest.

use super::save::on_terminal;
use crate::cli::{numbers, output};
use crate::image::open::{confine, path_failure};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_saved::{CHAIN_FILES_MAX, Head, PlainOutput, SalvageError, SavedError};
use pagefold_server::confinement::Kind;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, IsTerminal, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Ranges of lost pages that are listed.
const LISTED_MAX: usize = 1000;
/// Bytes that are written at once.
const BUFFER_LEN: usize = 256 << 10;

/// Writes the new saved disk. Fails with exit code 6 after that, if pages are lost in it.
pub fn run(path: &Path) -> Result<()> {
    let stdout = std::io::stdout();
    if stdout.is_terminal() {
        return Err(on_terminal());
    }
    let stdout = stdout.as_fd().try_clone_to_owned();
    let stdout = stdout.map_err(|e| CliError::io("writing to standard output", &e))?;
    let files = open(path)?;
    confine(Kind::Printing)?;
    let target = PlainOutput::new(BufWriter::with_capacity(BUFFER_LEN, File::from(stdout)));
    let salvaged = pagefold_saved::salvage(&files, target).map_err(|e| match e {
        SalvageError::Write(e) => CliError::io("writing to standard output", &e),
        e => CliError::new(Exit::Damaged, format!("nothing of '{}' can be used: {e}", path.display())),
    })?;
    let pages: u64 = salvaged.unverified.iter().map(|range| range.end - range.start).sum();
    if pages == 0 {
        let lost_before = salvaged.totals.lost_pages;
        output::note(&format!("all pages verify; {lost_before} were lost before the disk was saved"));
        return Ok(());
    }
    list(&salvaged.unverified);
    let pages = numbers::counted(pages, "page does not verify, and is", "pages do not verify, and are");
    Err(CliError::new(Exit::Damaged, format!("{pages} lost in the saved disk that was written")))
}

fn list(ranges: &[Range<u64>]) {
    for range in ranges.iter().take(LISTED_MAX) {
        match range.end - range.start {
            1 => output::note(&format!("lost: page {}", range.start)),
            _ => output::note(&format!("lost: pages {} to {}", range.start, range.end - 1)),
        }
    }
    if ranges.len() > LISTED_MAX {
        output::note(&format!("lost: pages in {} further ranges", ranges.len() - LISTED_MAX));
    }
}

/// Opens a saved disk, and the files that it needs as far as they are there: the newest first.
fn open(path: &Path) -> Result<Vec<File>> {
    let failed = |e: &std::io::Error| path_failure(format!("reading '{}'", path.display()), e);
    let mut files = vec![open_file(path).map_err(|e| failed(&e))?];
    let mut next = path.canonicalize().map_err(|e| failed(&e))?;
    while files.len() < CHAIN_FILES_MAX {
        let Some(parent) = files.last().and_then(parent_of) else { break };
        next = next.with_file_name(parent);
        match open_file(&next) {
            Ok(file) => files.push(file),
            Err(e) => {
                output::note(&format!("a file of the chain cannot be read: '{}': {e}", next.display()));
                break;
            }
        }
    }
    Ok(files)
}

/// The name of the parent that a file says it has.
fn parent_of(mut file: &File) -> Option<std::ffi::OsString> {
    let head = Head::read(&mut |bytes| {
        file.read_exact(bytes).map_err(|source| SavedError::Read { offset: 0, source })
    });
    Some(head.ok()?.parent()?.name.clone())
}

fn open_file(path: &Path) -> std::io::Result<File> {
    // Opening a pipe does not wait for its writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::other("it is not a file")),
    }
}
