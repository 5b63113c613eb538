//! Blobs of Azure's storage: `az://container/blob`.
//!
//! The account and what a request shows come from the user's environment (`settings.rs`), which a command reads: the key
//! of the account signs each request (`shared_key.rs`), a shared access signature is a part of the URL, and a token of
//! an application or of the machine is fetched again before it expires, and when the store refuses it. Without any of
//! them requests show nothing, which is what public containers need.
//!
//! Not here: writing, listing, and the interfaces of files (`abfss://`).

mod location;
mod settings;
mod shared_key;

pub use location::{AzureLocation, AzureLocationError};
pub use settings::{AzureCredentials, AzureSettings, MachineHeader, Proof};

use crate::access::{Access, Asked, Reaction, Refusal, Signed, store_url};
use crate::answer::AttemptError;
use crate::environment::read_bounded;
use crate::oauth::{Bearer, TokenClient, Tokens};
use crate::retry::Deadline;
use crate::xml::element;
use crate::{Options, RemoteError, RemoteSource, Secret, Url};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The version of the protocol.
const API_VERSION: &str = "2021-08-06";
/// The answers to requests that show nothing for a blob that needs credentials; 409 is that of an account which allows no
/// public access.
const HIDDEN: [u16; 4] = [401, 403, 404, 409];
/// The scope of tokens.
const SCOPE: &str = "https://storage.azure.com/.default";

/// Opens a blob.
pub fn open(
    location: &AzureLocation,
    settings: &AzureSettings,
    options: &Options,
) -> Result<RemoteSource, RemoteError> {
    let access = AzureAccess::new(location, settings, options.timeout)?;
    RemoteSource::open_by(Arc::new(access), options)
}

/// Access to one blob.
struct AzureAccess {
    location: AzureLocation,
    settings: AzureSettings,
    /// Without a shared access signature.
    url: Url,
    tokens: Tokens,
}

impl AzureAccess {
    fn new(
        location: &AzureLocation,
        settings: &AzureSettings,
        timeout: Duration,
    ) -> Result<Self, RemoteError> {
        let parse = |text: &str| store_url(text, location);
        let url = parse(&format!("{}/{}", settings.endpoint, location.encoded()))?;
        let tokens = match &settings.credentials {
            AzureCredentials::Application { url, .. } => Tokens::far(timeout, parse(url)?)?,
            AzureCredentials::Machine { url, .. } => Tokens::near(timeout, parse(url)?)?,
            _ => Tokens::none(),
        };
        let (location, settings) = (location.clone(), settings.clone());
        Ok(AzureAccess { location, settings, url, tokens })
    }

    fn fetch_token(
        &self,
        client: &TokenClient,
        url: &Url,
        deadline: &Deadline,
    ) -> Result<Bearer, AttemptError> {
        match &self.settings.credentials {
            AzureCredentials::Application { client_id, proof, .. } => {
                let of_file;
                let proof = match proof {
                    Proof::Secret(Secret(secret)) => vec![("client_secret", secret.as_str())],
                    Proof::File(path) => {
                        of_file = token_of_file(path)?;
                        let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
                        vec![("client_assertion_type", kind), ("client_assertion", &of_file.0)]
                    }
                };
                let own = [("grant_type", "client_credentials"), ("client_id", client_id), ("scope", SCOPE)];
                let fields: Vec<_> = own.into_iter().chain(proof).collect();
                client.exchange(url, &fields, "Azure's server of tokens", deadline)
            }
            AzureCredentials::Machine { header: (kind, value), .. } => {
                let name = match kind {
                    MachineHeader::Metadata => "metadata",
                    MachineHeader::Identity => "x-identity-header",
                };
                let (headers, is_named) = ([(name, value.clone())], *kind == MachineHeader::Identity);
                client.of_machine(url, &headers, is_named, "the service of the machine's identity", deadline)
            }
            _ => Err(AttemptError::refused("these credentials have no token")),
        }
    }

    fn denied(&self, status: u16, code: Option<&str>, is_bare: bool) -> RemoteError {
        let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
        let what = match (status, is_bare, &self.settings.credentials) {
            (404, false, _) => "there is no such blob".to_string(),
            (404, true, _) => {
                "there is no such blob, or it is not public and the request showed no credentials".to_string()
            }
            (_, _, AzureCredentials::Skipped) => {
                "the request showed no credentials, because of AZURE_SKIP_SIGNATURE or an endpoint of http://"
                    .to_string()
            }
            (_, true, _) => "the request showed no credentials, because none were found: set \
                AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN"
                .to_string(),
            (_, false, credentials) => format!("the request was sent with {}", credentials.describe()),
        };
        let what = format!("the store answers with status {status}{code}; {what}");
        match status {
            404 => RemoteError::Missing { what },
            _ => RemoteError::Denied { status, what },
        }
    }
}

impl Access for AzureAccess {
    fn name(&self) -> String {
        self.location.to_string()
    }

    fn server(&self) -> Url {
        self.url.clone()
    }

    fn request(&self, asked: &[Asked], deadline: &Deadline) -> Result<Signed, AttemptError> {
        let own = shared_key::own_headers(SystemTime::now());
        let mut signed =
            Signed { url: self.url.clone(), headers: Vec::new(), generation: 0, region: String::new() };
        match &self.settings.credentials {
            AzureCredentials::Skipped => {}
            AzureCredentials::Key { key: Secret(key), .. } => {
                let key = STANDARD.decode(key).unwrap_or_default();
                let value = shared_key::authorization(&self.url, &self.settings.account, &key, &own, asked);
                signed.headers.push(("authorization", value));
            }
            AzureCredentials::Sas { query, .. } => {
                let url = Url::parse(&format!("{}?{}", self.url.as_str(), query.0));
                signed.url = url.map_err(|e| AttemptError::refused(format!("the URL of the blob: {e}")))?;
            }
            AzureCredentials::Application { .. } | AzureCredentials::Machine { .. } => {
                let fetch = |client: &TokenClient, url: &Url| self.fetch_token(client, url, deadline);
                let (bearer, generation) = self.tokens.get(deadline, fetch)?;
                signed.generation = generation;
                signed.headers.extend(bearer.map(|value| ("authorization", value)));
            }
        }
        signed.headers.extend(own.into_iter().map(|(name, value)| (name, Secret(value))));
        Ok(signed)
    }

    fn refused(&self, signed: &Signed, refusal: &Refusal<'_>) -> Reaction {
        let has_token = signed.headers.iter().any(|(name, _)| *name == "authorization");
        let is_bare = !has_token && signed.url == self.url;
        let error = |status: u16| self.denied(status, element(refusal.body, "Code"), is_bare);
        match refusal.status {
            status if self.tokens.renew(status, signed.generation, has_token, &HIDDEN) => {
                Reaction::Renew(error(status))
            }
            status @ (400 | 401 | 403 | 404 | 409) => Reaction::Fail(error(status)),
            _ => Reaction::Judge,
        }
    }
}

/// The token in a file, without the end of its line.
fn token_of_file(path: &Path) -> Result<Secret, AttemptError> {
    let fail = |what: String| {
        AttemptError::Permanent(RemoteError::SetUp { what: format!("'{}': {what}", path.display()) })
    };
    let text = read_bounded(path).map_err(fail)?;
    let text = text.ok_or_else(|| fail("there is no such file".to_string()))?;
    match text.trim() {
        token if !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic()) => {
            Ok(Secret(token.to_string()))
        }
        _ => Err(fail("it has no token".to_string())),
    }
}
