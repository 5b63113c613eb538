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
    /// The first line that the process printed about its end, or its last line of the log if that is a panic; `None` if it is
    /// another one, which may be old, and says nothing of a process that was killed.
    pub last_words: Option<String>,
}

/// Moves the log of `dir` out of the folder. `None` if it is empty.
pub fn save(dir: &InstanceDir) -> io::Result<Option<SavedLog>> {
    let tail = dir.log_tail();
    if tail.is_empty() {
        return Ok(None);
    }
    let last_words = last_words(&tail);
    let logs = dir.path().parent().unwrap_or(dir.path()).join(LOGS);
    match DirBuilder::new().mode(0o700).create(&logs) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let path = logs.join(format!("{}.log", dir.name()));
    std::fs::rename(dir.log_path(), &path)?;
    remove_oldest(&logs)?;
    Ok(Some(SavedLog { path, last_words }))
}

/// The first line after the last line of the log, which begins with a date; or that line if it is a panic.
fn last_words(tail: &str) -> Option<String> {
    let is_dated = |line: &&str| {
        let date = line.as_bytes().get(..20);
        date.is_some_and(|date| {
            date[..4].iter().all(u8::is_ascii_digit) && date[4] == b'-' && date[19] == b' '
        })
    };
    let words = tail.lines().rev().take_while(|line| !is_dated(line)).filter(|line| !line.trim().is_empty());
    let panic = || {
        tail.lines().next_back()?.split_once(" error: ").filter(|(_, text)| text.starts_with("a panic at "))
    };
    words.last().or_else(|| panic().map(|(_, text)| text)).map(str::to_string)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_none_of_the_log() {
        let dated = "2026-11-27 23:08:12 error: limit reached: writes fail";
        assert_eq!(last_words(dated), None);
        let panic = format!("{dated}\n\nthread 'nbd-3' panicked at x.rs:1:2:\nno\nnote: run with");
        assert_eq!(last_words(&panic).as_deref(), Some("thread 'nbd-3' panicked at x.rs:1:2:"));
        assert_eq!(last_words(&format!("{panic}\n{dated}")), None);
        let logged = "2026-11-27 23:08:13 error: a panic at x.rs:1: no";
        assert_eq!(last_words(&format!("{dated}\n{logged}\n")).as_deref(), Some("a panic at x.rs:1: no"));
        assert_eq!(last_words(&format!("{logged}\n{dated}\n")), None);
    }
}
