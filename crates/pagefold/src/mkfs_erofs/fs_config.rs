//! The file of `mkfs.erofs --fs-config-file`.

use crate::image::open::path_failure;
use pagefold_control::error::{CliError, Result};
use pagefold_image_build::{FS_CONFIG_BYTES_MAX, FsConfig};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads the file, whose paths begin with `mount_point`.
pub fn read(path: &Path, mount_point: &[u8]) -> Result<FsConfig> {
    let shown = path.display();
    let mut text = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(FS_CONFIG_BYTES_MAX as u64 + 1).read_to_end(&mut text));
    read.map_err(|e| path_failure(format!("reading '{shown}'"), &e))?;
    FsConfig::parse(&text, mount_point).map_err(|e| CliError::usage(format!("'{shown}' is {e}")))
}
