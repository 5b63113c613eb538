//! Errors of commands: a message for the user and an exit code.
//!
//! One enumeration holds the exit codes: scripts rely on the numbers, the manual page lists them, and the control
//! socket carries them by name.

use serde::{Deserialize, Serialize};

/// The exit code of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// Success.
    Ok = 0,
    /// A failure without a more precise code.
    Failed = 1,
    /// The command line or a value in it is wrong.
    Usage = 2,
    /// Something that was named is not there (a disk, a mount, a file, a directory), or its server has gone.
    NotFound = 3,
    /// It is in use, or the name is taken.
    Busy = 4,
    /// No permission, or the system lacks what is needed.
    Unavailable = 5,
    /// Data contradict their format or do not decode.
    Damaged = 6,
    /// Of a command that runs another one: pagefold itself failed.
    RunnerFailed = 125,
    /// Of a command that runs another one: that cannot be run.
    NotExecutable = 126,
    /// Of a command that runs another one: that does not exist.
    NoCommand = 127,
}

/// Every exit code with its meaning, for the manual page.
pub const EXITS: [(Exit, &str); 10] = [
    (Exit::Ok, "done; a reader that closed the pipe early counts as done"),
    (Exit::Failed, "failed; the message says what was tried and what to do"),
    (Exit::Usage, "the command line, or a value on it, is wrong; nothing was changed"),
    (
        Exit::NotFound,
        "something that was named is not there: a disk, a mount, an image, a file in an image, a directory",
    ),
    (Exit::Busy, "it is in use, or the name is taken"),
    (Exit::Unavailable, "no permission, or the system lacks what is needed"),
    (
        Exit::Damaged,
        "data is damaged: an image contradicts its format, or contents do not decode; the rest was done",
    ),
    (Exit::RunnerFailed, "of 'disk create --run' and 'zram-shell': pagefold itself failed, not the command"),
    (Exit::NotExecutable, "of 'zram-shell': the command cannot be run"),
    (Exit::NoCommand, "of 'zram-shell': the command does not exist"),
];

/// An error that ends a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CliError {
    /// The exit code.
    pub exit: Exit,
    /// For the user: what was tried, what failed, and what to do.
    pub message: String,
    /// The error number that zram returns in this case, if it has the case.
    #[serde(default)]
    pub errno: Option<i32>,
}

/// The result of everything that can fail with a message for the user.
pub type Result<T, E = CliError> = std::result::Result<T, E>;

impl CliError {
    /// An error with the exit code `exit`.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        CliError { exit, message: message.into(), errno: None }
    }

    /// The same error, with the error number that zram returns.
    pub fn with_errno(self, errno: i32) -> Self {
        CliError { errno: Some(errno), ..self }
    }

    /// An error with the code [`Exit::Failed`].
    pub fn failed(message: impl Into<String>) -> Self {
        CliError::new(Exit::Failed, message)
    }

    /// An error with the code [`Exit::Usage`]: the command line, or a value, is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        CliError::new(Exit::Usage, message)
    }

    /// An I/O error during `what`. A denied permission has the code [`Exit::Unavailable`], all others [`Exit::Failed`].
    pub fn io(what: impl std::fmt::Display, e: &std::io::Error) -> Self {
        let exit = match e.kind() {
            std::io::ErrorKind::PermissionDenied => Exit::Unavailable,
            _ => Exit::Failed,
        };
        CliError::new(exit, format!("{what}: {e}"))
    }
}

impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CliError {}

impl From<pagefold_sys::SysError> for CliError {
    fn from(e: pagefold_sys::SysError) -> Self {
        let io = std::io::Error::from_raw_os_error(e.errno);
        CliError::io(&e.what, &io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_listed_once_and_in_order() {
        assert!(EXITS.iter().map(|(exit, _)| *exit as u8).eq((0..=6).chain(125..=127)));
    }
}
