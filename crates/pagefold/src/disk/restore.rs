//! The saved disk of `disk create --restore`: opened by the command, read by the server.
//!
//! The command reads the first bytes only, of a fixed form, because it needs the size; the confined server parses the
//! rest.

use super::create::CreateArgs;
use crate::image::open::path_failure;
use pagefold_control::config::RestoreConfig;
use pagefold_control::error::{CliError, Result};
use pagefold_saved::{HEAD_LEN, Head};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;

/// A saved disk whose first bytes were read.
pub struct OpenSaved {
    /// The file, behind these bytes.
    pub file: File,
    /// The part of the configuration.
    pub config: RestoreConfig,
    /// The size of the disk.
    pub size_bytes: u64,
}

/// Opens a saved disk for these arguments; - is standard input.
pub fn open(path: &Path, args: &CreateArgs) -> Result<OpenSaved> {
    let what = || format!("--restore: reading '{}'", path.display());
    let opened = match path == Path::new("-") {
        true => std::io::stdin().as_fd().try_clone_to_owned().map(File::from),
        false => File::open(path),
    };
    let mut file = opened.map_err(|e| path_failure(what(), &e))?;
    let mut head = Vec::new();
    let read = file.by_ref().take(HEAD_LEN as u64).read_to_end(&mut head);
    read.map_err(|e| path_failure(what(), &e))?;
    let parsed = head.first_chunk().map(Head::parse);
    let head = match parsed {
        Some(parsed) => parsed.map_err(|e| CliError::usage(format!("{}: {e}", what())))?,
        None => {
            return Err(CliError::usage(format!("{}: this is not a saved disk: it is too short", what())));
        }
    };
    let has_codecs = args.codec.is_some()
        || args.level.is_some()
        || args.dictionary.is_some()
        || !args.recompress_codec.is_empty()
        || !args.recompress_after.is_empty();
    let config =
        RestoreConfig { path: path.to_path_buf(), head: head.as_bytes().to_vec(), takes_codecs: !has_codecs };
    Ok(OpenSaved { file, config, size_bytes: head.len_bytes() })
}

/// Goes back to the place behind the first bytes, for another attempt of the server. A pipe has one attempt only, and
/// stays where it is.
pub fn rewind(file: Option<&File>) -> Result<()> {
    let Some(mut file) = file else { return Ok(()) };
    match file.seek(SeekFrom::Start(HEAD_LEN as u64)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotSeekable => {
            Err(CliError::io("reading the saved disk", &e))
        }
        _ => Ok(()),
    }
}
