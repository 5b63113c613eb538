//! What the tests of several crates share: how a test says that it did not run.
//!
//! A crate of its own, used as a development dependency only, so that there is one
//! form for `.ci/run` to count. It holds no fixtures.

use std::fmt::Arguments;
use std::io::Write;

/// Says that a test was skipped and why: `skipped!("{test}: {why}")`.
#[macro_export]
macro_rules! skipped {
    ($($message:tt)*) => {
        $crate::say_skipped(format_args!($($message)*))
    };
}

/// Prints past the test harness, which keeps what passing tests print to itself.
pub fn say_skipped(message: Arguments<'_>) {
    // A test that cannot say why it skips has nobody to say it to.
    let _ = writeln!(std::io::stderr(), "SKIPPED {message}");
}
