//! A case's verdict, as a file in the case's folder.
//!
//! A case runs in a process of its own, and that process may be unable to end: a thread that waits for a block device
//! whose server hangs cannot be killed. So the verdict goes to a file, and the runner reads it whether or not the
//! process has ended.

use crate::part::{Done, Fault, FaultKind};
use std::path::Path;

/// The file's name.
const NAME: &str = "verdict";

/// Writes the verdict; a second one is ignored, because the first fault is what counts.
pub fn write(dir: &Path, verdict: &Result<Done, Fault>) -> std::io::Result<()> {
    let text = match verdict {
        Ok(Done::Ran(what)) => format!("ran {what}"),
        Ok(Done::Skipped(why)) => format!("skipped {why}"),
        Err(fault) => format!("fault {} {}", fault.kind, fault.message),
    };
    let unfinished = dir.join("verdict.new");
    std::fs::write(&unfinished, text)?;
    // A link fails where the name exists, so that the first verdict stays; and it appears as a whole.
    let linked = std::fs::hard_link(&unfinished, dir.join(NAME));
    std::fs::remove_file(&unfinished)?;
    match linked {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Reads it, if there is one.
pub fn read(dir: &Path) -> Option<Result<Done, Fault>> {
    parse(&std::fs::read_to_string(dir.join(NAME)).ok()?)
}

fn parse(text: &str) -> Option<Result<Done, Fault>> {
    let (word, rest) = text.split_once(' ')?;
    match word {
        "ran" => Some(Ok(Done::Ran(rest.into()))),
        "skipped" => Some(Ok(Done::Skipped(rest.into()))),
        "fault" => {
            let (kind, message) = rest.split_once(' ')?;
            Some(Err(Fault::new(FaultKind::of_name(kind)?, message)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_verdict_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()), None);
        let fault = Err(Fault::new(FaultKind::Hang, "a write\nof 4096 bytes"));
        write(dir.path(), &fault).unwrap();
        write(dir.path(), &Ok(Done::Ran("later".into()))).unwrap();
        assert_eq!(read(dir.path()), Some(fault));
        for verdict in [Ok(Done::Ran("a b".into())), Ok(Done::Skipped("no fio".into()))] {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), &verdict).unwrap();
            assert_eq!(read(dir.path()), Some(verdict));
        }
    }
}
