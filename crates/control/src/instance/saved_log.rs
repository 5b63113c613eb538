//! Saves the log of a server that died, before its folder is removed: nothing else says why it died.
//!
//! Saved logs are in the folder `.logs` of the runtime folder, one for each name of a disk: a newer one replaces it.

use super::InstanceDir;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The folder of saved logs. No disk can have this name.
const LOGS: &str = ".logs";
/// Most logs that are saved; the oldest are removed.
const MAX_LOGS: usize = 32;

/// A log that was saved.
pub struct SavedLog {
    /// Its new path.
    pub path: PathBuf,
    /// Its last line.
    pub last_line: String,
}

/// Moves the log of `dir` out of the folder. `None` if it is empty.
pub fn save(dir: &InstanceDir) -> io::Result<Option<SavedLog>> {
    let Some(last_line) = dir.log_tail().lines().next_back().map(str::to_string) else {
        return Ok(None);
    };
    let logs = dir.path().parent().unwrap_or(dir.path()).join(LOGS);
    match DirBuilder::new().mode(0o700).create(&logs) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let path = logs.join(format!("{}.log", dir.name()));
    std::fs::rename(dir.log_path(), &path)?;
    remove_oldest(&logs)?;
    Ok(Some(SavedLog { path, last_line }))
}

fn remove_oldest(logs: &Path) -> io::Result<()> {
    let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(logs)? {
        let entry = entry?;
        found.push((entry.metadata()?.modified()?, entry.path()));
    }
    found.sort();
    let too_many = found.len().saturating_sub(MAX_LOGS);
    found.iter().take(too_many).try_for_each(|(_, path)| std::fs::remove_file(path))
}
