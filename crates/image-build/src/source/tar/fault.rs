//! The errors of a member that is not taken: [`BuildError::Refused`] without a path, which the scan adds.

use crate::BuildError;

/// The error of a member that is at fault.
pub(super) fn refused(what: impl Into<String>) -> BuildError {
    BuildError::refused(b"", what)
}

/// Describes the fault of a member further; other errors stay.
pub(super) fn described(error: BuildError, describe: impl FnOnce(&str) -> String) -> BuildError {
    match error {
        BuildError::Refused { what, .. } => refused(describe(&what)),
        error => error,
    }
}
