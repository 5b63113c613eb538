//! Converts errors of the store and of the NBD export into errors of commands.

use pagefold_block::nbd::NbdError;
use pagefold_control::error::{CliError, Exit};
use pagefold_store::recompress::RecompressError;
use pagefold_store::writeback::WritebackError;
use std::fmt;

/// The error for a failed pass, with advice and with the name of the error number that zram would return.
pub fn of_writeback(e: &WritebackError) -> CliError {
    let exit = match e {
        WritebackError::NoBacking => Exit::Unavailable,
        WritebackError::Selection(_) => Exit::Usage,
        WritebackError::Budget | WritebackError::Full | WritebackError::Io(_) | WritebackError::Stopped => {
            Exit::Failed
        }
    };
    let advice = match e {
        WritebackError::NoBacking => "; create the disk with --backing",
        WritebackError::Full => {
            "; discard what is not needed, make room in that file system, or create a disk with a larger backing"
        }
        _ => "",
    };
    CliError::new(exit, format!("{}{advice}", with_errno(e, e.errno()))).with_errno(e.errno())
}

/// The error for a pass of recompression that could not begin.
pub fn of_recompress(e: &RecompressError) -> CliError {
    let (exit, advice) = match e {
        RecompressError::NoCodec { .. } | RecompressError::NoSuchCodec { .. } => {
            (Exit::Usage, "; create the disk with --recompress-codec")
        }
        RecompressError::Codec(_) => (Exit::Failed, ""),
        RecompressError::Unknown { .. }
        | RecompressError::TooLarge { .. }
        | RecompressError::Threshold { .. } => (Exit::Usage, ""),
    };
    CliError::new(exit, format!("{}{advice}", with_errno(e, e.errno()))).with_errno(e.errno())
}

/// Appends the name of an error number to a message.
pub fn with_errno(sentence: impl fmt::Display, errno: i32) -> String {
    let name = match errno {
        libc::EINVAL => "EINVAL",
        libc::EIO => "EIO",
        libc::EINTR => "EINTR",
        libc::ENODEV => "ENODEV",
        libc::ENOMEM => "ENOMEM",
        libc::ENOSPC => "ENOSPC",
        libc::ERANGE => "ERANGE",
        other => return format!("{sentence} (error {other})"),
    };
    format!("{sentence} ({name})")
}

/// The error for an NBD export that cannot be opened.
pub fn of_nbd(e: NbdError) -> CliError {
    let exit = match &e {
        NbdError::BadName { .. }
        | NbdError::NeedsTls { .. }
        | NbdError::TlsFile { .. }
        | NbdError::Tls(_) => Exit::Usage,
        NbdError::PathTooLong { .. } | NbdError::UnsafeFolder { .. } => Exit::Unavailable,
        NbdError::Stopped => Exit::Failed,
        NbdError::Sys(e) => CliError::from(e.clone()).exit,
    };
    CliError::new(exit, format!("opening the NBD export: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_store::writeback::SelectionError;

    #[test]
    fn writeback_errors_have_an_exit_code_and_zrams_error_number() {
        for (error, exit, name) in [
            (WritebackError::NoBacking, Exit::Unavailable, "(ENODEV)"),
            (WritebackError::Selection(SelectionError::Nothing), Exit::Usage, "(EINVAL)"),
            (
                WritebackError::Selection(SelectionError::OutOfRange { index: 9, page_count: 5 }),
                Exit::Usage,
                "(ERANGE)",
            ),
            (WritebackError::Budget, Exit::Failed, "(EIO)"),
            (WritebackError::Full, Exit::Failed, "(ENOSPC)"),
            (WritebackError::Stopped, Exit::Failed, "(EINTR)"),
        ] {
            let failure = of_writeback(&error);
            assert_eq!(failure.exit, exit, "{failure}");
            assert!(failure.message.contains(name), "{failure}");
        }
    }
}
