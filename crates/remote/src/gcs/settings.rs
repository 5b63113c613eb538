//! The settings of Google's storage: the "application default credentials" that Google's tools and libraries find.
//!
//! A command reads them. The server of a mount gets the result, and fetches tokens by itself.

use super::jwt::SigningKey;
use crate::environment::{Environment, SettingsError, flag, in_file, parse_url, read_settings, value};
use crate::{Secret, Url};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The URL of the store.
pub(super) const ENDPOINT: &str = "https://storage.googleapis.com";
/// The server of tokens, if a file does not name it.
const TOKEN_URL: &str = "https://oauth2.googleapis.com/token";
/// The service of an instance's metadata: the address of metadata.google.internal.
const INSTANCE_METADATA: &str = "169.254.169.254";

/// How objects are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcsSettings {
    /// The URL before the bucket, without a slash at its end.
    pub endpoint: String,
    /// The project that pays for requests, in place of the owner of the bucket.
    #[serde(default)]
    pub payer: Option<String>,
    /// The credentials.
    pub credentials: GcsCredentials,
}

/// Credentials, which are exchanged for tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GcsCredentials {
    /// Nothing: requests have no token.
    Nothing,
    /// The user wants requests to have no token.
    Skipped,
    /// The key of a service account, which signs.
    ServiceAccount {
        /// The account.
        email: String,
        /// The name of the key.
        key_id: String,
        /// The key, in PEM.
        private_key: Secret,
        /// The URL of the server of tokens.
        token_url: String,
    },
    /// The login of a user, as `gcloud auth application-default login` keeps it.
    User {
        /// The program that the user allowed to read.
        client_id: String,
        /// Its secret.
        client_secret: Secret,
        /// The token that is exchanged.
        refresh_token: Secret,
        /// The URL of the server of tokens.
        token_url: String,
    },
    /// The service account of the machine; without one requests have no token.
    Machine {
        /// The URL of the service.
        url: String,
    },
}

impl GcsCredentials {
    /// Whose they are, for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            GcsCredentials::Nothing | GcsCredentials::Skipped => "nobody".to_string(),
            GcsCredentials::ServiceAccount { email, .. } => format!("the service account '{email}'"),
            GcsCredentials::User { .. } => "the user of 'gcloud auth application-default login'".to_string(),
            GcsCredentials::Machine { .. } => "the machine's service account".to_string(),
        }
    }
}

/// A file with credentials.
#[derive(Deserialize)]
struct CredentialsFile {
    #[serde(rename = "type", default)]
    kind: String,
    client_email: Option<String>,
    private_key_id: Option<String>,
    private_key: Option<Secret>,
    token_uri: Option<String>,
    client_id: Option<String>,
    client_secret: Option<Secret>,
    refresh_token: Option<Secret>,
}

impl GcsSettings {
    /// Reads the environment and files.
    pub fn from_environment(env: Environment<'_>) -> Result<Self, SettingsError> {
        let Some(host) = env("STORAGE_EMULATOR_HOST") else {
            let (endpoint, credentials) = (ENDPOINT.to_string(), credentials(env)?);
            return Ok(GcsSettings { endpoint, payer: payer(env)?, credentials });
        };
        let endpoint = match host.contains("://") {
            true => host,
            false => format!("http://{host}"),
        };
        let endpoint = endpoint.trim_end_matches('/').to_string();
        parse_url("STORAGE_EMULATOR_HOST", &endpoint)?;
        // An emulator has no use for a token, which would let its owner read what the user may read.
        Ok(GcsSettings { endpoint, payer: payer(env)?, credentials: GcsCredentials::Nothing })
    }
}

/// The project that pays.
fn payer(env: Environment<'_>) -> Result<Option<String>, SettingsError> {
    const NAME: &str = "GOOGLE_CLOUD_QUOTA_PROJECT";
    let is_project = |text: &String| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-:.".contains(&b));
    match env(NAME) {
        Some(project) if !is_project(&project) => Err(value(NAME, "it is not the name of a project")),
        project => Ok(project),
    }
}

/// The credentials, in the order in which Google's libraries look for them.
fn credentials(env: Environment<'_>) -> Result<GcsCredentials, SettingsError> {
    if flag(env, "GOOGLE_SKIP_SIGNATURE")? {
        return Ok(GcsCredentials::Skipped);
    }
    if let Some(path) = env("GOOGLE_APPLICATION_CREDENTIALS") {
        let path = PathBuf::from(path);
        return of_file(&path)?.ok_or_else(|| in_file(&path, MISSING));
    }
    let folder = env("CLOUDSDK_CONFIG").map(PathBuf::from);
    let folder = folder.or_else(|| env("HOME").map(|home| PathBuf::from(home).join(".config/gcloud")));
    let of_user = folder.map(|folder| of_file(&folder.join("application_default_credentials.json")));
    if let Some(found) = of_user.transpose()?.flatten() {
        return Ok(found);
    }
    if flag(env, "NO_GCE_CHECK")? {
        return Ok(GcsCredentials::Nothing);
    }
    let host = env("GCE_METADATA_HOST").unwrap_or_else(|| INSTANCE_METADATA.to_string());
    let url = format!("http://{host}/computeMetadata/v1/instance/service-accounts/default/token");
    parse_url("GCE_METADATA_HOST", &url)?;
    Ok(GcsCredentials::Machine { url })
}

const MISSING: &str = "is named by GOOGLE_APPLICATION_CREDENTIALS, and there is no such file";

/// The credentials of a file; `None` if there is no such file.
fn of_file(path: &Path) -> Result<Option<GcsCredentials>, SettingsError> {
    let wrong = |why: &str| in_file(path, why);
    let Some(text) = read_settings(path)? else { return Ok(None) };
    // The error of the parser could quote a secret.
    let file: CredentialsFile =
        serde_json::from_str(&text).map_err(|_| wrong("is not the JSON of Google's credentials"))?;
    let token_url = file.token_uri.unwrap_or_else(|| TOKEN_URL.to_string());
    match Url::parse(&token_url) {
        Ok(url) if url.is_private() => {}
        _ => return Err(wrong("names a server of tokens that is neither of https:// nor of this machine")),
    }
    let incomplete = || wrong("lacks a part of its credentials");
    match file.kind.as_str() {
        "service_account" => {
            let private_key = file.private_key.ok_or_else(incomplete)?;
            SigningKey::parse(&private_key).map_err(|why| wrong(&why))?;
            Ok(Some(GcsCredentials::ServiceAccount {
                email: file.client_email.ok_or_else(incomplete)?,
                key_id: file.private_key_id.unwrap_or_default(),
                private_key,
                token_url,
            }))
        }
        "authorized_user" => Ok(Some(GcsCredentials::User {
            client_id: file.client_id.ok_or_else(incomplete)?,
            client_secret: file.client_secret.ok_or_else(incomplete)?,
            refresh_token: file.refresh_token.ok_or_else(incomplete)?,
            token_url,
        })),
        _ => Err(wrong(
            "has credentials of another kind than 'service_account' and 'authorized_user'; to read with others, make a key \
             for HMAC and use s3:// with AWS_ENDPOINT_URL=https://storage.googleapis.com",
        )),
    }
}

#[cfg(test)]
mod tests;
