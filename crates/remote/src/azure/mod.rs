//! Blobs of Azure's storage: `az://container/blob`.
//!
//! The account and what a request shows come from the user's environment (`settings.rs`), which a command reads: the key
//! of the account signs each request (`shared_key.rs`), a shared access signature is a part of the URL, and a token of
//! an application or of the machine is fetched again before it expires, and when the store refuses it. Without any of
//! them requests show nothing, which is what public containers need.
//!
//! Not here: writing, listing, and the interfaces of files (`abfss://`).

mod settings;
mod shared_key;

pub use settings::{AzureCredentials, AzureSettings, MachineHeader, Proof};

use crate::access::{Access, Header, Reaction, Refusal, SignedRequest, store_url};
use crate::answer::AttemptError;
use crate::environment::token_of_file;
use crate::logins::{self, Credentials};
use crate::oauth::{Bearer, TokenService, Tokens};
use crate::object_name::ObjectName;
use crate::retry::Deadline;
use crate::time::skew_advice;
use crate::xml::element;
use crate::{RemoteError, Secret, Url};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::time::{Duration, SystemTime};

/// The answers to requests that show nothing for a blob that needs credentials; 409 is that of an account which allows no
/// public access.
const HIDDEN: [u16; 4] = [401, 403, 404, 409];
/// Statuses that are failures, with advice.
const DENIALS: [u16; 5] = [400, 401, 403, 404, 409];
/// The scope of tokens.
const SCOPE: &str = "https://storage.azure.com/.default";

/// Access to one blob.
pub(crate) struct AzureAccess {
    name: ObjectName,
    settings: AzureSettings,
    /// Without a shared access signature.
    url: Url,
    tokens: Tokens,
}

impl AzureAccess {
    pub(crate) fn new(
        name: &ObjectName,
        settings: &AzureSettings,
        timeout: Duration,
    ) -> Result<Self, RemoteError> {
        let parse = |text: &str| store_url(text, name);
        let url = parse(&format!("{}/{}", settings.endpoint, name.encoded()))?;
        let service = match &settings.credentials {
            AzureCredentials::Application { url, .. } => Some(TokenService::far(timeout, parse(url)?)?),
            AzureCredentials::Machine { url, .. } => Some(TokenService::near(timeout, parse(url)?)?),
            _ => None,
        };
        let (name, settings) = (name.clone(), settings.clone());
        Ok(AzureAccess { name, settings, url, tokens: Tokens::new(service) })
    }

    /// The credentials for a writer, renewed before they expire.
    pub(crate) fn credentials(&self, deadline: &Deadline) -> Result<Credentials, AttemptError> {
        Ok(match &self.settings.credentials {
            AzureCredentials::Skipped => Credentials::Nothing,
            AzureCredentials::Key { key, .. } => Credentials::AccountKey(key.clone()),
            AzureCredentials::Sas { query, .. } => Credentials::Sas(query.clone()),
            AzureCredentials::Application { .. } | AzureCredentials::Machine { .. } => {
                logins::token(self.tokens.get(deadline, |service| self.fetch_token(service, deadline))?.0)
            }
        })
    }

    fn fetch_token(&self, service: &TokenService, deadline: &Deadline) -> Result<Bearer, AttemptError> {
        match &self.settings.credentials {
            AzureCredentials::Application { client_id, proof, .. } => {
                let of_file;
                let proof = match proof {
                    Proof::Secret(Secret(secret)) => vec![("client_secret", secret.as_str())],
                    Proof::File(path) => {
                        of_file = token_of_file(path, b"").map_err(AttemptError::Permanent)?;
                        let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
                        vec![("client_assertion_type", kind), ("client_assertion", &of_file.0)]
                    }
                };
                let own = [("grant_type", "client_credentials"), ("client_id", client_id), ("scope", SCOPE)];
                let fields: Vec<_> = own.into_iter().chain(proof).collect();
                service.exchange(&fields, "Azure's server of tokens", deadline)
            }
            AzureCredentials::Machine { header: (kind, value), .. } => {
                let name = match kind {
                    MachineHeader::Metadata => "metadata",
                    MachineHeader::Identity => "x-identity-header",
                };
                let (header, is_named) = ((name, value.clone()), *kind == MachineHeader::Identity);
                service.of_machine(header, is_named, "the service of the machine's identity", deadline)
            }
            _ => Err(AttemptError::refused("these credentials have no token")),
        }
    }

    fn denied(&self, status: u16, code: Option<&str>, is_bare: bool, skew: &str) -> RemoteError {
        let advice = match (status, is_bare, &self.settings.credentials) {
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
        RemoteError::refusal(status, code, &format!("{advice}{skew}"))
    }
}

impl Access for AzureAccess {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn server(&self) -> Url {
        self.url.clone()
    }

    fn request(&self, added: &[Header], deadline: &Deadline) -> Result<SignedRequest, AttemptError> {
        let own = shared_key::own_headers(SystemTime::now());
        let (mut url, mut authorization, mut generation) = (self.url.clone(), None, 0);
        match &self.settings.credentials {
            AzureCredentials::Skipped => {}
            AzureCredentials::Key { key: Secret(key), .. } => {
                let (key, account) = (STANDARD.decode(key).unwrap_or_default(), &self.settings.account);
                authorization = Some(shared_key::authorization(&self.url, account, &key, &own, added));
            }
            AzureCredentials::Sas { query, .. } => {
                let signed = Url::parse(&format!("{}?{}", self.url.as_str(), query.0));
                url = signed.map_err(|e| AttemptError::refused(format!("the URL of the blob: {e}")))?;
            }
            AzureCredentials::Application { .. } | AzureCredentials::Machine { .. } => {
                (authorization, generation) =
                    self.tokens.get(deadline, |service| self.fetch_token(service, deadline))?;
            }
        }
        let mut request = SignedRequest::with_authorization(&url, authorization, generation);
        request.headers.extend(own.into_iter().map(|(name, value)| (name, Secret(value))));
        Ok(request)
    }

    fn refused(&self, request: &SignedRequest, refusal: &Refusal<'_>) -> Reaction {
        let is_bare = !request.has_authorization() && request.url == self.url;
        let skew = skew_advice(refusal.date.filter(|_| refusal.status == 403));
        let error = || self.denied(refusal.status, element(refusal.body, "Code"), is_bare, &skew);
        self.tokens.react(request, refusal.status, [&HIDDEN, &DENIALS], error)
    }
}
