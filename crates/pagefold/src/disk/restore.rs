//! The saved disk of `disk create --restore`: opened by the command, read by the server.
//!
//! The command reads the first bytes only, of a fixed form, because it needs the size; the confined server parses the
//! rest.

use super::bucket;
use super::chain;
use super::create::DiskOptions;
use crate::image::open::path_failure;
use pagefold_control::config::RestoreConfig;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_saved::{Head, SavedError};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The file of a saved disk, which the server reads from where the command has stopped.
#[derive(Debug)]
pub struct SavedInput {
    /// The file.
    pub file: File,
    /// The files that it needs, if it is an incremental save: its parent first.
    pub parents: Vec<File>,
    /// The threads that write to these pipes, if the saved disk is on a server.
    pub fetching: Option<bucket::Fetching>,
    /// That place; `None` in a pipe, which can be read once only.
    begin: Option<u64>,
}

/// A saved disk whose first bytes were read.
pub struct OpenSaved {
    /// The file, behind these bytes.
    pub input: SavedInput,
    /// The part of the configuration.
    pub config: RestoreConfig,
    /// The size of the disk.
    pub size_bytes: u64,
}

/// Opens a saved disk for a disk with these options; - is standard input.
pub fn open(path: &Path, args: &DiskOptions) -> Result<OpenSaved> {
    if let Some(location) = bucket::location(path) {
        return bucket::open(&location, args);
    }
    let what = || format!("--restore: reading '{}'", path.display());
    let opened = match path == Path::new("-") {
        true => std::io::stdin().as_fd().try_clone_to_owned().map(File::from),
        false => File::open(path),
    };
    let mut file = opened.map_err(|e| path_failure(what(), &e))?;
    let head = read_head(&mut file, &what)?;
    // Standard input may be at any place, and be read by others too.
    let is_file = path != Path::new("-") && file.metadata().is_ok_and(|metadata| metadata.is_file());
    let parents = match head.parent() {
        None => Vec::new(),
        Some(_) if !is_file => {
            let name = "it is an incremental save, which needs the files beside it; name its file";
            return Err(CliError::usage(format!("{}: {name}", what())));
        }
        Some(parent) => chain::parents(path, head.len_bytes(), parent)?,
    };
    let paths = parents.iter().map(|parent| parent.path.clone()).collect();
    let config = RestoreConfig { is_lazy: is_file, ..config(path, &head, paths, args) };
    let begin = file.stream_position().ok();
    let parents = parents.into_iter().map(|parent| parent.file).collect();
    let input = SavedInput { begin, ..SavedInput::of_pipe(file, parents) };
    Ok(OpenSaved { input, config, size_bytes: head.len_bytes() })
}

/// The part of the configuration for a saved disk with these first bytes and parents, which is read before the disk is ready.
pub fn config(path: &Path, head: &Head, parents: Vec<PathBuf>, args: &DiskOptions) -> RestoreConfig {
    let has_codecs = args.codec.is_some()
        || args.level.is_some()
        || args.dictionary.is_some()
        || !args.recompress_codec.is_empty()
        || !args.recompress_after.is_empty();
    RestoreConfig {
        path: path.to_path_buf(),
        head: head.as_bytes().to_vec(),
        parents,
        takes_codecs: !has_codecs,
        is_lazy: false,
    }
}

/// As [`open`]; `None` if the file is missing. A missing folder is an error: perhaps its file system is not mounted. So is
/// a save beside a missing file, which only ends the name of one: a new disk would take its place.
pub fn open_if_exists(path: &Path, args: &DiskOptions) -> Result<Option<OpenSaved>> {
    if let Some(location) = bucket::location(path) {
        return bucket::open_if_exists(&location, args);
    }
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let is_missing = path.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound);
    let Some(name) = path.file_name().filter(|_| is_missing && folder.is_dir()) else {
        return open(path, args).map(Some);
    };
    let failed = |e: &std::io::Error| path_failure(format!("reading '{}'", folder.display()), e);
    for entry in folder.read_dir().map_err(|e| failed(&e))? {
        let found = entry.map_err(|e| failed(&e))?;
        if chain::is_second_name(name, &found.file_name()) {
            return Err(CliError::new(
                Exit::Damaged,
                format!(
                    "'{}' is missing, but '{}', a save of it, is there: copy the newest of these to it, or move them away for \
                     an empty disk",
                    path.display(),
                    found.path().display()
                ),
            ));
        }
    }
    Ok(None)
}

/// Reads the first bytes, of a fixed form.
fn read_head(file: &mut File, what: &dyn Fn() -> String) -> Result<Head> {
    let head = Head::read(&mut |bytes| {
        file.read_exact(bytes).map_err(|source| SavedError::Read { offset: 0, source })
    });
    head.map_err(|e| match e {
        SavedError::Read { source, .. } if source.kind() == ErrorKind::UnexpectedEof => {
            CliError::usage(format!("{}: this is not a saved disk: it is too short", what()))
        }
        SavedError::Read { source, .. } => path_failure(what(), &source),
        e => CliError::usage(format!("{}: {e}", what())),
    })
}

impl SavedInput {
    /// A saved disk that can be read once, from where it is now.
    pub fn of_pipe(file: File, parents: Vec<File>) -> Self {
        SavedInput { file, parents, fetching: None, begin: None }
    }

    /// Goes back to where the server began, for another attempt. Returns whether it could: a pipe has one attempt only.
    pub fn rewind(&self) -> Result<bool> {
        let Some(begin) = self.begin else { return Ok(false) };
        let parents = self.parents.iter().map(|file| (file, 0));
        for (mut file, begin) in std::iter::once((&self.file, begin)).chain(parents) {
            let sought = file.seek(SeekFrom::Start(begin));
            sought.map_err(|e| CliError::io("reading the saved disk", &e))?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A file may be open at any place, as standard input is behind what the program before has read.
    #[test]
    fn a_file_is_read_again_from_its_place_and_a_pipe_is_not() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"before, and then").unwrap();
        let input = SavedInput { begin: Some(8), ..SavedInput::of_pipe(file, Vec::new()) };
        for _ in 0..2 {
            assert!(input.rewind().unwrap());
            let mut read = String::new();
            (&input.file).read_to_string(&mut read).unwrap();
            assert_eq!(read, "and then");
        }
        let (reader, _writer) = std::io::pipe().unwrap();
        let mut file = File::from(std::os::fd::OwnedFd::from(reader));
        let begin = file.stream_position().ok();
        assert!(!SavedInput { begin, ..SavedInput::of_pipe(file, Vec::new()) }.rewind().unwrap());
    }
}
