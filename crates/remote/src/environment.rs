//! The user's environment, from which the settings of stores are read, and why they cannot be used.

use std::io::{ErrorKind, Read};
use std::path::Path;

/// The longest file of settings, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads a variable of the environment; `None` if it is not set, or empty.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Why settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A value that is none.
    #[error("{name} {why}")]
    Value {
        /// The variable or setting.
        name: String,
        /// The reason.
        why: String,
    },
    /// A profile that does not exist, cannot be read, or needs more than this program does.
    #[error("the profile '{profile}': {why}")]
    Profile {
        /// Its name.
        profile: String,
        /// The reason.
        why: String,
    },
}

/// The error of a value that is none.
pub(crate) fn value(name: &str, why: impl ToString) -> SettingsError {
    SettingsError::Value { name: name.to_string(), why: format!("is refused: {}", why.to_string()) }
}

/// Reads a variable that is true or false; false without it.
pub(crate) fn flag(env: Environment<'_>, name: &str) -> Result<bool, SettingsError> {
    match env(name).map(|text| text.to_ascii_lowercase()).as_deref() {
        None | Some("false" | "0") => Ok(false),
        Some("true" | "1") => Ok(true),
        Some(_) => Err(value(name, "it is neither true nor false")),
    }
}

/// Reads a file of text; `None` if it does not exist.
pub(crate) fn read_bounded(path: &Path) -> Result<Option<String>, String> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    match text.len() as u64 <= MAX_FILE_BYTES {
        true => Ok(Some(text)),
        false => Err(format!("it is longer than {MAX_FILE_BYTES} bytes")),
    }
}
