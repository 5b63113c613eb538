//! The counter of generated names: `disk0`, `disk1` and so on for disks, `mount0` and so on for mounted images.
//!
//! A script that holds the name `disk0` must never meet another disk. So the number of a generated name is not used
//! again while the runtime folder exists, also after the disk was removed. The file of the counter contains the next
//! number. If it is missing or damaged, counting starts after the highest number of an existing instance.

use super::{InstanceDir, InstanceName};
use crate::error::{CliError, Result};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file of the counter, in the runtime folder. No instance can have this name.
const COUNTER: &str = ".counter";
/// The file that replaces it.
const NEW_COUNTER: &str = ".counter.new";

/// Takes the next number for a name that begins with `prefix`, skipping those for which `is_taken`. The caller holds the
/// lock of the runtime folder. `existing`: the instances in it.
pub fn take(
    runtime: &Path,
    prefix: &str,
    existing: &[InstanceDir],
    is_taken: impl Fn(&InstanceName) -> bool,
) -> Result<InstanceName> {
    let after_highest =
        || existing.iter().filter_map(|dir| number(dir.name(), prefix)).max().map_or(0, |n| n + 1);
    let mut next = read(runtime).unwrap_or_else(after_highest);
    let mut name = InstanceName::numbered(prefix, next);
    while is_taken(&name) {
        next += 1;
        name = InstanceName::numbered(prefix, next);
    }
    write(runtime, next + 1)?;
    Ok(name)
}

/// The number of a name that could have been generated.
fn number(name: &InstanceName, prefix: &str) -> Option<u64> {
    let number = parse(name.as_str().strip_prefix(prefix)?)?;
    (InstanceName::numbered(prefix, number) == *name).then_some(number)
}

/// Parses a number that leaves room for counting on.
fn parse(text: &str) -> Option<u64> {
    text.parse().ok().filter(|n| *n < u64::MAX / 2)
}

fn read(runtime: &Path) -> Option<u64> {
    parse(std::fs::read_to_string(runtime.join(COUNTER)).ok()?.strip_suffix('\n')?)
}

/// Replaces the file, so that a failed write never loses the old number.
fn write(runtime: &Path, next: u64) -> Result<()> {
    let (path, new) = (runtime.join(COUNTER), runtime.join(NEW_COUNTER));
    let opened = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new);
    let written = opened.and_then(|mut file| file.write_all(format!("{next}\n").as_bytes()));
    written.and_then(|()| std::fs::rename(&new, &path)).map_err(|e| {
        // If the new file stays, it has no effect.
        let _ = std::fs::remove_file(&new);
        CliError::io(format!("writing '{}', which numbers disks and mounts", path.display()), &e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_never_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let instance =
            |name: &str| InstanceDir::new(InstanceName::parse(name).unwrap(), dir.path().join(name));
        let existing = ["disk4", "disk007", "disk", "disk99999999999999999999", "other9"].map(instance);
        let take = |taken: &str| {
            take(dir.path(), "disk", &existing, |name| name.as_str() == taken).unwrap().as_str().to_string()
        };
        assert_eq!(take(""), "disk5");
        assert_eq!(take(""), "disk6");
        // A user has chosen the next name.
        assert_eq!(take("disk7"), "disk8");
        assert_eq!(take(""), "disk9");
        for damaged in ["", "12", "x\n", "-1\n", "18446744073709551615\n"] {
            std::fs::write(dir.path().join(COUNTER), damaged).unwrap();
            assert_eq!(take(""), "disk5", "{damaged:?}");
        }
    }

    #[test]
    fn a_counter_that_cannot_be_written_is_an_error_and_keeps_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let take = || take(dir.path(), "disk", &[], |_| false);
        take().unwrap();
        std::fs::create_dir(dir.path().join(NEW_COUNTER)).unwrap();
        assert!(take().unwrap_err().message.contains(COUNTER));
        std::fs::remove_dir(dir.path().join(NEW_COUNTER)).unwrap();
        assert_eq!(take().unwrap().as_str(), "disk1");
    }
}
