//! Failures as a user meets them: a sentence and an exit code.
//!
//! One enumeration holds the exit codes; scripts rely on them, the manual page
//! prints them, and the control socket carries them by name.

use serde::{Deserialize, Serialize};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// It failed for a reason that has no code of its own.
    Failed = 1,
    /// The command line or a value in it is wrong.
    Usage = 2,
    /// There is no disk, or no file in an image, of that name.
    NotFound = 3,
    /// The name is taken, or the disk is in use.
    Busy = 4,
    /// No permission, or the system lacks what is needed.
    Unavailable = 5,
}

/// Every exit code with its meaning, for the manual page.
pub const EXITS: [(Exit, &str); 6] = [
    (Exit::Ok, "done; a reader that closed the pipe early counts as done"),
    (Exit::Failed, "failed; the message says what was tried and what to do"),
    (Exit::Usage, "the command line, or a value on it, is wrong; nothing was changed"),
    (Exit::NotFound, "there is no disk, or no file in an image, of that name"),
    (Exit::Busy, "the name is taken, or the disk is in use"),
    (Exit::Unavailable, "no permission, or the system lacks what is needed"),
];

/// A failure: what was tried, what failed, what to do, and how to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// The sentence.
    pub message: String,
}

/// What fallible parts of this program return.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure that ends with `exit`.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into() }
    }

    /// A failure without a code of its own.
    pub fn failed(message: impl Into<String>) -> Self {
        Failure::new(Exit::Failed, message)
    }

    /// A wrong command line or value.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, message)
    }

    /// A failed call on `what`, with the code that fits its reason.
    pub fn io(what: impl std::fmt::Display, e: &std::io::Error) -> Self {
        let exit = match e.kind() {
            std::io::ErrorKind::PermissionDenied => Exit::Unavailable,
            _ => Exit::Failed,
        };
        Failure::new(exit, format!("{what}: {e}"))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<pagefold_sys::SysError> for Failure {
    fn from(e: pagefold_sys::SysError) -> Self {
        let io = std::io::Error::from_raw_os_error(e.errno);
        Failure::io(&e.what, &io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_listed_once_and_in_order() {
        for (i, (exit, _)) in EXITS.iter().enumerate() {
            assert_eq!(*exit as usize, i);
        }
    }
}
