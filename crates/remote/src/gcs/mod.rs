//! Objects of Google's storage: `gs://bucket/object`, by its interface of XML, which answers as HTTP servers do.
//!
//! Requests have a token, which is fetched again before it expires, and when the store refuses it: for a service account,
//! whose key signs claims (`jwt.rs`), for a user who has logged in with `gcloud`, or for the machine. Without any of them
//! requests have no token, which is what public buckets need. Where credentials are is in `settings.rs`, which a command
//! reads. Keys for HMAC are those of `s3://`, with another endpoint.
//!
//! Not here: writing, listing, identities of other clouds, and acting for another account.

mod jwt;
mod settings;

pub use settings::{GcsCredentials, GcsSettings};

use crate::access::{Access, Header, Reaction, Refusal, SignedRequest, store_url};
use crate::answer::AttemptError;
use crate::oauth::{Bearer, TokenService, Tokens};
use crate::object_name::ObjectName;
use crate::retry::Deadline;
use crate::xml::element;
use crate::{RemoteError, Secret, Url};
use jwt::SigningKey;
use std::time::{Duration, SystemTime};

/// The answers to requests without a token for an object that needs one.
const HIDDEN: [u16; 3] = [401, 403, 404];
/// Statuses that are failures, with advice.
const DENIALS: [u16; 4] = [400, 401, 403, 404];
/// The name of the service of tokens in messages.
const WHOSE: &str = "Google's server of tokens";

/// Access to one object.
pub(crate) struct GcsAccess {
    name: ObjectName,
    settings: GcsSettings,
    url: Url,
    /// The key of the service account, if it is one.
    key: Option<SigningKey>,
    tokens: Tokens,
}

impl GcsAccess {
    pub(crate) fn new(
        name: &ObjectName,
        settings: &GcsSettings,
        timeout: Duration,
    ) -> Result<Self, RemoteError> {
        let parse = |text: &str| store_url(text, name);
        let url = parse(&format!("{}/{}", settings.endpoint, name.encoded()))?;
        let mut key = None;
        let service = match &settings.credentials {
            GcsCredentials::Nothing | GcsCredentials::Skipped => None,
            GcsCredentials::ServiceAccount { private_key, token_url, .. } => {
                let set_up = |e| RemoteError::SetUp { what: format!("the service account {e}") };
                key = Some(SigningKey::parse(private_key).map_err(set_up)?);
                Some(TokenService::far(timeout, parse(token_url)?)?)
            }
            GcsCredentials::User { token_url, .. } => Some(TokenService::far(timeout, parse(token_url)?)?),
            GcsCredentials::Machine { url } => Some(TokenService::near(timeout, parse(url)?)?),
        };
        let (name, settings) = (name.clone(), settings.clone());
        Ok(GcsAccess { name, settings, url, key, tokens: Tokens::new(service) })
    }

    /// The header `Authorization`, renewed before it expires.
    pub(crate) fn token(&self, deadline: &Deadline) -> Result<Option<Secret>, AttemptError> {
        Ok(self.tokens.get(deadline, |service| self.fetch_token(service, deadline))?.0)
    }

    fn fetch_token(&self, service: &TokenService, deadline: &Deadline) -> Result<Bearer, AttemptError> {
        match &self.settings.credentials {
            GcsCredentials::ServiceAccount { email, key_id, token_url, .. } => {
                let key = self.key.as_ref().ok_or_else(|| AttemptError::refused("there is no key"))?;
                let signed = key.assertion(email, key_id, token_url, SystemTime::now());
                let Secret(assertion) =
                    signed.map_err(|what| AttemptError::Permanent(RemoteError::SetUp { what }))?;
                let kind = "urn:ietf:params:oauth:grant-type:jwt-bearer";
                service.exchange(&[("grant_type", kind), ("assertion", &assertion)], WHOSE, deadline)
            }
            GcsCredentials::User { client_id, client_secret, refresh_token, .. } => {
                let fields = [
                    ("grant_type", "refresh_token"),
                    ("client_id", client_id),
                    ("client_secret", &client_secret.0),
                    ("refresh_token", &refresh_token.0),
                ];
                service.exchange(&fields, WHOSE, deadline)
            }
            _ => {
                let header = ("metadata-flavor", Secret("Google".into()));
                service.of_machine(header, false, "the instance's metadata", deadline)
            }
        }
    }

    fn denied(&self, status: u16, code: Option<&str>, has_token: bool) -> RemoteError {
        let advice = match (status, has_token, &self.settings.credentials) {
            (404, _, _) => "there is no such object".to_string(),
            (_, _, GcsCredentials::Skipped) => {
                "the request had no token, because of GOOGLE_SKIP_SIGNATURE".to_string()
            }
            (_, _, GcsCredentials::Nothing) if self.settings.endpoint != settings::ENDPOINT => {
                "the request had no token, because STORAGE_EMULATOR_HOST names an emulator".to_string()
            }
            (_, false, _) => "the request had no token, because no credentials were found: set \
                GOOGLE_APPLICATION_CREDENTIALS, or run 'gcloud auth application-default login'"
                .to_string(),
            (_, true, credentials) => format!("the request had a token of {}", credentials.describe()),
        };
        let advice = match code {
            Some("UserProjectMissing") if self.settings.payer.is_none() => {
                "the bucket lets those who read pay: set GOOGLE_CLOUD_QUOTA_PROJECT to your project"
                    .to_string()
            }
            _ => advice,
        };
        RemoteError::refusal(status, code, &advice)
    }
}

impl Access for GcsAccess {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn server(&self) -> Url {
        self.url.clone()
    }

    fn request(&self, _: &[Header], deadline: &Deadline) -> Result<SignedRequest, AttemptError> {
        let (token, generation) = self.tokens.get(deadline, |service| self.fetch_token(service, deadline))?;
        let mut request = SignedRequest::with_authorization(&self.url, token, generation);
        // Without a token nobody has shown that the project may be charged, and the store refuses the request.
        let payer = self.settings.payer.clone().filter(|_| request.has_authorization());
        request.headers.extend(payer.map(|project| ("x-goog-user-project", Secret(project))));
        Ok(request)
    }

    fn refused(&self, request: &SignedRequest, refusal: &Refusal<'_>) -> Reaction {
        let has_token = request.has_authorization();
        let error = || self.denied(refusal.status, element(refusal.body, "Code"), has_token);
        self.tokens.react(request, refusal.status, [&HIDDEN, &DENIALS], error)
    }
}
