//! Helpers of tests: the macro [`skipped!`] reports a test that did not run; [`noise`] makes bytes;
//! [`Random`] draws cases.
//!
//! This is a separate crate because the tests of all crates need it, as a development dependency. It contains no
//! fixtures.

mod noise;
pub mod parameter;
mod random;
pub mod seccomp;

pub use noise::noise;
pub use random::Random;

use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Reports that a test was skipped, with the reason: `skipped!("{test}: {why}")`.
#[macro_export]
macro_rules! skipped {
    ($($message:tt)*) => {
        $crate::report_skipped(format_args!($($message)*))
    };
}

/// Prints a line `SKIPPED ...` to standard error, directly, because the test harness hides the output of tests that
/// pass. Appends the message to `skipped.log` in the target folder, too, which `.ci/skipped` summarizes.
pub fn report_skipped(message: Arguments<'_>) {
    // One write each, so that output of other threads does not come in between. If standard error is closed, or the
    // target folder belongs to another user, the other one of the two is the report.
    let _ = std::io::stderr().write_all(format!("SKIPPED {message}\n").as_bytes());
    if let Ok(program) = std::env::current_exe() {
        let _ = log_skip(&program, message);
    }
}

/// Appends to the log beside the folder of the profile, in which a test program is (`target/debug/deps/name`).
fn log_skip(program: &Path, message: Arguments<'_>) -> io::Result<()> {
    let target = program.ancestors().nth(3).ok_or(io::ErrorKind::NotFound)?;
    let mut log = File::options().create(true).append(true).open(target.join("skipped.log"))?;
    log.write_all(format!("{message}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_of_all_programs_are_lines_of_one_log() {
        let target = std::env::temp_dir().join(format!("pagefold-skips-{}", std::process::id()));
        std::fs::create_dir(&target).unwrap();
        log_skip(&target.join("debug/deps/one"), format_args!("a: no {}", "root")).unwrap();
        log_skip(&target.join("debug/deps/other"), format_args!("b: no root")).unwrap();
        assert_eq!(std::fs::read_to_string(target.join("skipped.log")).unwrap(), "a: no root\nb: no root\n");
        std::fs::remove_dir_all(&target).unwrap();
    }
}
