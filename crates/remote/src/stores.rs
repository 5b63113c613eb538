//! The settings of all stores that the names on a command line need, read once, by the command.
//!
//! A command makes a text of them, which is a secret, and passes it to the server of a mount by the channel of its start.

pub use crate::object_name::{ObjectName, ObjectNameError, Store};

use crate::access::Access;
use crate::azure::{AzureAccess, AzureSettings};
use crate::environment::{Environment, SettingsError};
use crate::gcs::{GcsAccess, GcsSettings};
use crate::oci::{Login, OciReference, Platform};
use crate::s3::{S3Access, S3Settings};
use crate::{Options, RemoteError, RemoteSource};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Opens an object of a bucket with the settings of its store.
pub fn open(
    name: &ObjectName,
    settings: &StoreSettings,
    options: &Options,
) -> Result<RemoteSource, RemoteError> {
    let unread = || RemoteError::SetUp { what: format!("{name}: the settings of its store were not read") };
    let timeout = options.timeout;
    let access: Arc<dyn Access> = match name.store {
        Store::S3 => Arc::new(S3Access::new(name, settings.s3.as_ref().ok_or_else(unread)?, timeout)?),
        Store::Azure => {
            Arc::new(AzureAccess::new(name, settings.azure.as_ref().ok_or_else(unread)?, timeout)?)
        }
        Store::Gcs => Arc::new(GcsAccess::new(name, settings.gcs.as_ref().ok_or_else(unread)?, timeout)?),
        Store::Oci => return Err(unread()),
    };
    RemoteSource::open_by(access, options)
}

/// The settings of stores. `Debug` shows no secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreSettings {
    /// Of S3, if a name needs them.
    pub s3: Option<S3Settings>,
    /// Of Azure's storage, if a name needs them.
    #[serde(default)]
    pub azure: Option<AzureSettings>,
    /// Of Google's storage, if a name needs them.
    #[serde(default)]
    pub gcs: Option<GcsSettings>,
    /// The logins for images in registries, by [`OciReference::repository`].
    pub logins: BTreeMap<String, Login>,
    /// The platform of images in registries; `None` for that of this machine.
    pub platform: Option<Platform>,
}

impl StoreSettings {
    /// Reads what these names need from the environment, from files, and from programs that the files name. Names that
    /// are no names of stores need nothing. `notes` gets sentences about logins that cannot be had.
    pub fn read<'a>(
        names: impl IntoIterator<Item = &'a str>,
        platform: Option<Platform>,
        env: Environment<'_>,
        notes: &mut Vec<String>,
    ) -> Result<Self, SettingsError> {
        let mut settings = StoreSettings { platform, ..StoreSettings::default() };
        for name in names {
            match Store::of(name) {
                Some(Store::S3) if settings.s3.is_none() => {
                    settings.s3 = Some(S3Settings::from_environment(env)?);
                }
                Some(Store::Azure) if settings.azure.is_none() => {
                    settings.azure = Some(AzureSettings::from_environment(env)?);
                }
                Some(Store::Gcs) if settings.gcs.is_none() => {
                    settings.gcs = Some(GcsSettings::from_environment(env)?);
                }
                Some(Store::Oci) => {
                    // A malformed name is an error where it is opened.
                    let image = name.split('#').next().unwrap_or_default();
                    let Ok(reference) = OciReference::parse(image) else { continue };
                    if let Some(login) = crate::oci::login(&reference.registry, &reference.name, env, notes)?
                    {
                        settings.logins.insert(reference.repository(), login);
                    }
                }
                _ => {}
            }
        }
        Ok(settings)
    }

    /// The settings as a text, which is a secret.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The settings of a text that [`to_text`](Self::to_text) has made; `None` of any other.
    pub fn from_text(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_names_are_read_and_pass_through_a_text() {
        let folder = tempfile::tempdir().unwrap();
        let config =
            r#"{"auths": {"localhost:5000": {"auth": "bWU6aGlkZGVu"}, "other": {"auth": "not base64"}}}"#;
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let path = folder.path().display().to_string();
        let env = |name: &str| match name {
            "DOCKER_CONFIG" => Some(path.clone()),
            "AWS_ACCESS_KEY_ID" => Some("ID".to_string()),
            "AWS_SECRET_ACCESS_KEY" => Some("hidden".to_string()),
            "AZURE_STORAGE_ACCOUNT" => Some("images".to_string()),
            "AZURE_STORAGE_KEY" => Some("aGlkZGVu".to_string()),
            _ => None,
        };
        let read = |names: &[&str]| StoreSettings::read(names.iter().copied(), None, &env, &mut Vec::new());
        assert_eq!(read(&["/a", "https://host/a"]).unwrap(), StoreSettings::default());
        let all = read(&[
            "S3://bucket/key",
            "az://c/b",
            "gs://b/o",
            "oci://LOCALHOST:5000/a#verity",
            "oci://third/a",
            "oci://",
        ])
        .unwrap();
        assert!(all.s3.is_some() && all.azure.is_some() && all.gcs.is_some());
        assert!(all.logins.keys().eq(["localhost:5000/a"]));
        assert_eq!(StoreSettings::from_text(&all.to_text()), Some(all.clone()));
        assert!(!format!("{all:?}").contains("hidden") && all.to_text().contains("hidden"));
        assert!(read(&["oci://other/a"]).is_err());
        assert_eq!(StoreSettings::from_text("x"), None);
    }
}
