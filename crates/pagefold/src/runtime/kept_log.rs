//! Keeping the log of a server that died: it is the only witness.
//!
//! The logs are in the folder `.logs` of the runtime folder, one for each name, and so the newest of that name.

use super::DiskDir;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The folder of kept logs. No disk can have this name.
const LOGS: &str = ".logs";
/// Most logs that are kept; the oldest go.
const MAX_LOGS: usize = 32;

/// A log that was kept.
pub struct KeptLog {
    /// Where it is now.
    pub path: PathBuf,
    /// Its last line.
    pub last_line: String,
}

/// Moves the log of `dir` to where it outlives the folder. `None` if there is nothing in it.
pub fn keep(dir: &DiskDir) -> io::Result<Option<KeptLog>> {
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
    Ok(Some(KeptLog { path, last_line }))
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
