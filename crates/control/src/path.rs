//! The form of paths in JSON: of messages, state files and reports.
//!
//! A path is any bytes, and JSON is text. A path that is UTF-8 is a string; another one is an object with its bytes, as
//! `{"bytes": [99, 97, 102, 233]}`. Use the module for a field with `#[serde(with = "crate::path")]`, or
//! [`option`] and [`list`].

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A path as it is read: of either form.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum PathForm {
    /// A path that is UTF-8.
    Text(String),
    /// Another path.
    Bytes {
        /// Its bytes.
        bytes: Vec<u8>,
    },
}

impl From<PathForm> for PathBuf {
    fn from(form: PathForm) -> Self {
        match form {
            PathForm::Text(text) => text.into(),
            PathForm::Bytes { bytes } => OsString::from_vec(bytes).into(),
        }
    }
}

/// A path as it is written.
struct Written<'a>(&'a Path);

#[derive(Serialize)]
struct WrittenBytes<'a> {
    bytes: &'a [u8],
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => text.serialize(serializer),
            None => WrittenBytes { bytes: self.0.as_os_str().as_bytes() }.serialize(serializer),
        }
    }
}

/// Writes a path.
pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    Written(path).serialize(serializer)
}

/// Reads a path.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    PathForm::deserialize(deserializer).map(PathBuf::from)
}

/// A path that may be absent.
pub mod option {
    use super::{PathForm, Written};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::path::PathBuf;

    /// Writes a path, or null.
    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_deref().map(Written).serialize(serializer)
    }

    /// Reads a path, or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<PathForm>::deserialize(deserializer)?.map(PathBuf::from))
    }
}

/// Several paths.
pub mod list {
    use super::{PathForm, Written};
    use serde::{Deserialize, Deserializer, Serializer};
    use std::path::PathBuf;

    /// Writes paths.
    pub fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| Written(path)))
    }

    /// Reads paths.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<PathForm>::deserialize(deserializer)?.into_iter().map(PathBuf::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Paths {
        #[serde(with = "super")]
        one: PathBuf,
        #[serde(default, with = "super::option")]
        none: Option<PathBuf>,
        #[serde(with = "super::list")]
        all: Vec<PathBuf>,
    }

    #[test]
    fn all_bytes_of_a_path_come_back() {
        let odd = PathBuf::from(OsString::from_vec(b"/caf\xe9/\x00\xff".to_vec()));
        for (path, text) in
            [(PathBuf::from("/café"), "\"/café\""), (odd, "{\"bytes\":[47,99,97,102,233,47,0,255]}")]
        {
            let paths = Paths { one: path.clone(), none: None, all: vec![path.clone(), "x".into()] };
            let written = serde_json::to_string(&paths).unwrap();
            assert_eq!(written, format!("{{\"one\":{text},\"none\":null,\"all\":[{text},\"x\"]}}"));
            assert_eq!(serde_json::from_str::<Paths>(&written).unwrap(), paths);
            let some = Paths { none: Some(path), ..paths };
            assert_eq!(serde_json::from_str::<Paths>(&serde_json::to_string(&some).unwrap()).unwrap(), some);
        }
        assert!(serde_json::from_str::<Paths>("{\"one\":7,\"all\":[]}").is_err());
    }
}
