//! Helpers of tests: the macro [`skipped!`] prints a line in the one format that `.ci/run` counts; [`noise`] makes bytes.
//!
//! This is a separate crate because the tests of all crates need it, as a development dependency. It contains no
//! fixtures.

mod noise;
pub mod parameter;
pub mod seccomp;

pub use noise::noise;

use std::fmt::Arguments;
use std::io::Write;

/// Prints that a test was skipped, with the reason: `skipped!("{test}: {why}")`.
#[macro_export]
macro_rules! skipped {
    ($($message:tt)*) => {
        $crate::print_skipped(format_args!($($message)*))
    };
}

/// Prints to standard error directly, because the test harness hides the output of tests that pass.
pub fn print_skipped(message: Arguments<'_>) {
    // One write, so that output of other threads does not come in between. If standard error is closed, there is no way
    // to report the skip.
    let _ = std::io::stderr().write_all(format!("SKIPPED {message}\n").as_bytes());
}
