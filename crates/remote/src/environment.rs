//! The user's environment, from which the settings of stores are read, and why they cannot be used.

use crate::{RemoteError, Secret, Url};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The longest file of settings, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads a variable of the environment; `None` if it is not set, or empty.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads a variable of this process as an [`Environment`] does.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Why settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A malformed value.
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

/// The error of a malformed value.
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

/// Parses a URL that `name` has.
pub(crate) fn parse_url(name: &str, text: &str) -> Result<Url, SettingsError> {
    Url::parse(text).map_err(|e| value(name, e))
}

/// Parses a URL that `name` has, of a server that gets secrets.
pub(crate) fn private_url(name: &str, text: &str) -> Result<Url, SettingsError> {
    let url = parse_url(name, text)?;
    match url.is_private() {
        true => Ok(url),
        false => Err(value(name, "it is neither of https:// nor of this machine")),
    }
}

/// Refuses a secret that would end a header.
pub(crate) fn check_header(name: &str, secret: &str) -> Result<(), SettingsError> {
    match secret.bytes().any(|b| b.is_ascii_control()) {
        true => Err(value(name, "it has control characters")),
        false => Ok(()),
    }
}

/// Makes a path absolute, because the server of a mount may run in another folder.
pub(crate) fn absolute(path: String) -> PathBuf {
    std::path::absolute(&path).unwrap_or_else(|_| path.into())
}

/// The error for a file of settings.
pub(crate) fn in_file(path: &Path, why: impl Into<String>) -> SettingsError {
    SettingsError::Value { name: format!("'{}'", path.display()), why: why.into() }
}

/// Reads a file of settings; `None` if it does not exist.
pub(crate) fn read_settings(path: &Path) -> Result<Option<String>, SettingsError> {
    read_bounded(path).map_err(|e| in_file(path, format!("cannot be read: {e}")))
}

/// Reads the token in a file, without the end of its line. It has the printable characters of ASCII, and those of `others`.
pub(crate) fn token_of_file(path: &Path, others: &[u8]) -> Result<Secret, RemoteError> {
    let fail = |what: String| RemoteError::SetUp { what: format!("'{}': {what}", path.display()) };
    let text = read_bounded(path).map_err(fail)?.ok_or_else(|| fail("there is no such file".to_string()))?;
    let token = text.trim();
    match !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic() || others.contains(&b)) {
        true => Ok(Secret(token.to_string())),
        false => Err(fail("it has no token".to_string())),
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
