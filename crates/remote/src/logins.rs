//! The credentials with which this crate reads from a bucket, for a library that writes to it.
//!
//! [`Login`] has the sources and the renewal of the reading side, so that a user who can read can write, as far as the store
//! allows it. The library of the writer signs.

use crate::answer::AttemptError;
use crate::azure::AzureAccess;
use crate::environment::SettingsError;
use crate::gcs::GcsAccess;
use crate::object_name::{ObjectName, Store};
use crate::retry::{Deadline, until_deadline};
use crate::s3::{Keys, S3Access};
use crate::stores::StoreSettings;
use crate::{RemoteError, Secret};
use std::time::Duration;

/// Credentials of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// Nothing: what public buckets need.
    Nothing,
    /// Keys of S3, which sign.
    Keys(Keys),
    /// A token of OAuth.
    Token(Secret),
    /// The key of an account of Azure, in base64.
    AccountKey(Secret),
    /// A shared access signature of Azure, a query.
    Sas(Secret),
}

/// The credentials for one bucket.
pub struct Login {
    access: StoreAccess,
    timeout: Duration,
}

enum StoreAccess {
    S3(Box<S3Access>),
    Azure(Box<AzureAccess>),
    Gcs(Box<GcsAccess>),
}

impl Login {
    /// The login for the bucket of this object. Asks no server yet.
    pub fn new(name: &ObjectName, settings: &StoreSettings, timeout: Duration) -> Result<Self, RemoteError> {
        let unread =
            || RemoteError::SetUp { what: format!("{name}: the settings of its store were not read") };
        let access = match name.store {
            Store::S3 => {
                let settings = settings.s3.as_ref().ok_or_else(unread)?;
                StoreAccess::S3(Box::new(S3Access::new(name, settings, timeout)?))
            }
            Store::Azure => {
                let settings = settings.azure.as_ref().ok_or_else(unread)?;
                StoreAccess::Azure(Box::new(AzureAccess::new(name, settings, timeout)?))
            }
            Store::Gcs => {
                let settings = settings.gcs.as_ref().ok_or_else(unread)?;
                StoreAccess::Gcs(Box::new(GcsAccess::new(name, settings, timeout)?))
            }
            Store::Oci => return Err(unread()),
        };
        Ok(Login { access, timeout })
    }

    /// The credentials, renewed before they expire. May ask services, until the time limit.
    pub fn get(&self) -> Result<Credentials, RemoteError> {
        let deadline = Deadline::after(self.timeout);
        until_deadline(&deadline, std::thread::sleep, || self.try_get(&deadline))
    }

    fn try_get(&self, deadline: &Deadline) -> Result<Credentials, AttemptError> {
        match &self.access {
            StoreAccess::S3(s3) => Ok(s3.keys(deadline)?.map_or(Credentials::Nothing, Credentials::Keys)),
            StoreAccess::Azure(azure) => azure.credentials(deadline),
            StoreAccess::Gcs(gcs) => Ok(token(gcs.token(deadline)?)),
        }
    }
}

/// The credentials for a header `Authorization` with a token.
pub(crate) fn token(header: Option<Secret>) -> Credentials {
    let token = header.and_then(|Secret(header)| header.strip_prefix("Bearer ").map(String::from));
    token.map_or(Credentials::Nothing, |token| Credentials::Token(Secret(token)))
}

/// Reads the settings of the store of an object from the environment of this process.
pub fn settings(name: &ObjectName) -> Result<StoreSettings, SettingsError> {
    StoreSettings::read([name.to_string().as_str()], None, &crate::environment::variable, &mut Vec::new())
}
