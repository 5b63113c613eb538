//! The errors of commands for media that cannot be opened or verified.

use pagefold_control::error::{CliError, Exit};
use pagefold_control::media::Location;
use pagefold_image::verity::VerityError;
use pagefold_remote::RemoteError;

/// The exit code for a failure of a digest.
pub fn verity_exit(error: &VerityError) -> Exit {
    if error.is_damage() { Exit::Damaged } else { Exit::Failed }
}

/// The error of an object on a server that was not opened.
pub(crate) fn opening(location: &Location, error: &RemoteError) -> CliError {
    CliError::new(remote_exit(error), format!("opening '{location}': {error}"))
}

/// The error of an image that was not published.
pub(super) fn pushing(target: &Location, error: &RemoteError) -> CliError {
    CliError::new(remote_exit(error), format!("pushing to '{target}': {error}"))
}

fn remote_exit(error: &RemoteError) -> Exit {
    match error {
        error if error.is_missing() => Exit::NotFound,
        RemoteError::Changed { .. } | RemoteError::OtherDigest { .. } => Exit::Damaged,
        RemoteError::NoRanges | RemoteError::Unversioned | RemoteError::SetUp { .. } => Exit::Unavailable,
        error if error.is_denied() => Exit::Unavailable,
        // A bucket that does not exist.
        RemoteError::Denied { status: 404, .. } => Exit::Unavailable,
        _ => Exit::Failed,
    }
}

/// Says how to make a Merkle tree that is missing.
pub(super) fn with_advice(error: CliError) -> CliError {
    match error.exit {
        Exit::NotFound => {
            CliError::new(error.exit, format!("{error}; 'pagefold image digest' makes the Merkle tree"))
        }
        _ => error,
    }
}
