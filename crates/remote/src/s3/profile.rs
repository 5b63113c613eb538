//! Profiles in `~/.aws/credentials` and `~/.aws/config`.
//!
//! The files are lines of `name = value` under headings in brackets. An indented line continues a setting that has
//! settings inside, such as `s3 =`; these are left out. The credentials file wins over the other.

use crate::environment::{Environment, SettingsError, read_bounded};
use std::collections::HashMap;
use std::path::PathBuf;

/// One profile. A default one that is in no file is empty.
#[derive(Debug, Clone, Default)]
pub(super) struct Profile {
    pub(super) name: String,
    settings: HashMap<String, String>,
}

impl Profile {
    /// Reads the profile that the environment names. One that is named must exist.
    pub(super) fn from_environment(env: Environment<'_>) -> Result<Self, SettingsError> {
        let named = env("AWS_PROFILE").or_else(|| env("AWS_DEFAULT_PROFILE"));
        let name = named.clone().unwrap_or_else(|| "default".to_string());
        let mut profile = Profile { name: name.clone(), settings: HashMap::new() };
        let home = env("HOME").map(PathBuf::from);
        let file = |variable: &str, file: &str| {
            let beside_home = home.as_ref().map(|home| home.join(".aws").join(file));
            env(variable).map(PathBuf::from).or(beside_home)
        };
        let is_default = name == "default";
        let config_heading = if is_default { "default".to_string() } else { format!("profile {name}") };
        let mut is_found = false;
        for (path, headings) in [
            (file("AWS_CONFIG_FILE", "config"), [config_heading, format!("profile {name}")]),
            (file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), [name.clone(), name.clone()]),
        ] {
            let Some(path) = path else { continue };
            let text =
                read_bounded(&path).map_err(|e| profile.error(format!("'{}': {e}", path.display())))?;
            let Some(text) = text else { continue };
            is_found |= add(&text, &headings, &mut profile.settings);
        }
        match is_found || named.is_none() {
            true => Ok(profile),
            false => Err(profile.error("it is in none of the files, ~/.aws/config and ~/.aws/credentials")),
        }
    }

    /// A setting; an empty one is none.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(super) fn error(&self, why: impl Into<String>) -> SettingsError {
        SettingsError::Profile { profile: self.name.clone(), why: why.into() }
    }
}

/// Adds the settings under these headings; true if there is such a heading.
fn add(text: &str, headings: &[String], settings: &mut HashMap<String, String>) -> bool {
    let (mut is_inside, mut is_found) = (false, false);
    for line in text.lines() {
        let is_indented = line.starts_with([' ', '\t']);
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if !is_indented && let Some(heading) = trimmed.strip_prefix('[') {
            let heading = heading.split(']').next().unwrap_or_default();
            let words: Vec<_> = heading.split_whitespace().collect();
            is_inside = headings.contains(&words.join(" "));
            is_found |= is_inside;
            continue;
        }
        if is_inside
            && !is_indented
            && let Some((key, value)) = trimmed.split_once('=')
        {
            let value = value.trim();
            // A comment after a value has a space before it.
            let value = value.find(" #").or_else(|| value.find(" ;")).map_or(value, |at| &value[..at]).trim();
            settings.insert(key.trim().to_ascii_lowercase(), value.to_string());
        }
    }
    is_found
}
