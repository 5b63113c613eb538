//! The names of instances. Users choose those of disks; mounted images have numbers.

use crate::error::{CliError, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The name of an instance: short, and safe as a file name and in a terminal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InstanceName(String);

impl InstanceName {
    /// Most bytes in a name.
    pub const MAX_LEN: usize = 32;

    /// Checks a name that a user typed. The error says what is allowed.
    pub fn parse(text: &str) -> Result<Self> {
        let starts_well = !text.starts_with(['.', '-']);
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if (1..=Self::MAX_LEN).contains(&text.len()) && starts_well && text.bytes().all(allowed) {
            return Ok(InstanceName(text.to_string()));
        }
        Err(CliError::usage(format!(
            "{text:?} is not a valid disk name: use 1 to {} of A-Z a-z 0-9 . _ -, not starting with . or -",
            Self::MAX_LEN
        )))
    }

    /// A generated name: `prefix`, at most 12 letters, and a number.
    pub(super) fn numbered(prefix: &str, number: u64) -> Self {
        InstanceName(format!("{prefix}{number}"))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for InstanceName {
    type Error = CliError;
    fn try_from(text: String) -> Result<Self> {
        InstanceName::parse(&text)
    }
}

impl From<InstanceName> for String {
    fn from(name: InstanceName) -> String {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Exit;

    #[test]
    fn only_short_names_of_safe_characters_are_accepted() {
        for good in ["a", "disk0", "A.b_c-9", &"x".repeat(32)] {
            assert_eq!(InstanceName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".x", "-x", "a/b", "a b", "é", "a\n", &"x".repeat(33)] {
            assert_eq!(InstanceName::parse(bad).unwrap_err().exit, Exit::Usage, "{bad:?}");
        }
    }
}
