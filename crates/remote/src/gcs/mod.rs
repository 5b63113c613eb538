//! Objects of Google's storage: `gs://bucket/object`, by its interface of XML, which answers as HTTP servers do.
//!
//! Requests have a token, which is fetched again before it expires, and when the store refuses it: for a service account,
//! whose key signs claims (`jwt.rs`), for a user who has logged in with `gcloud`, or for the machine. Without any of them
//! requests have no token, which is what public buckets need. Where credentials are is in `settings.rs`, which a command
//! reads. Keys for HMAC are those of `s3://`, with another endpoint.
//!
//! Not here: writing, listing, identities of other clouds, and acting for another account.

mod jwt;
mod location;
mod settings;

pub use location::{GcsLocation, GcsLocationError};
pub use settings::{GcsCredentials, GcsSettings};

use crate::access::{Access, Asked, Reaction, Refusal, Signed, store_url};
use crate::answer::AttemptError;
use crate::oauth::{Bearer, TokenClient, Tokens};
use crate::retry::Deadline;
use crate::xml::element;
use crate::{Options, RemoteError, RemoteSource, Secret, Url};
use jwt::SigningKey;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The answers to requests without a token for an object that needs one.
const HIDDEN: [u16; 3] = [401, 403, 404];
/// The name of the service of tokens in messages.
const WHOSE: &str = "Google's server of tokens";

/// Opens an object.
pub fn open(
    location: &GcsLocation,
    settings: &GcsSettings,
    options: &Options,
) -> Result<RemoteSource, RemoteError> {
    let access = GcsAccess::new(location, settings, options.timeout)?;
    RemoteSource::open_by(Arc::new(access), options)
}

/// Access to one object.
struct GcsAccess {
    location: GcsLocation,
    settings: GcsSettings,
    url: Url,
    /// The key of the service account, if it is one.
    key: Option<SigningKey>,
    tokens: Tokens,
}

impl GcsAccess {
    fn new(location: &GcsLocation, settings: &GcsSettings, timeout: Duration) -> Result<Self, RemoteError> {
        let set_up = |what: String| RemoteError::SetUp { what };
        let parse = |text: &str| store_url(text, location);
        let url = parse(&format!("{}/{}", settings.endpoint, location.encoded()))?;
        let (mut key, mut tokens) = (None, Tokens::none());
        match &settings.credentials {
            GcsCredentials::Nothing | GcsCredentials::Skipped => {}
            GcsCredentials::ServiceAccount { private_key, token_url, .. } => {
                key = Some(
                    SigningKey::parse(private_key).map_err(|e| set_up(format!("the service account {e}")))?,
                );
                tokens = Tokens::far(timeout, parse(token_url)?)?;
            }
            GcsCredentials::User { token_url, .. } => tokens = Tokens::far(timeout, parse(token_url)?)?,
            GcsCredentials::Machine { url } => tokens = Tokens::near(timeout, parse(url)?)?,
        }
        let (location, settings) = (location.clone(), settings.clone());
        Ok(GcsAccess { location, settings, url, key, tokens })
    }

    fn fetch_token(
        &self,
        client: &TokenClient,
        url: &Url,
        deadline: &Deadline,
    ) -> Result<Bearer, AttemptError> {
        match &self.settings.credentials {
            GcsCredentials::ServiceAccount { email, key_id, token_url, .. } => {
                let key = self.key.as_ref().ok_or_else(|| AttemptError::refused("there is no key"))?;
                let signed = key.assertion(email, key_id, token_url, SystemTime::now());
                let Secret(assertion) =
                    signed.map_err(|what| AttemptError::Permanent(RemoteError::SetUp { what }))?;
                let kind = "urn:ietf:params:oauth:grant-type:jwt-bearer";
                client.exchange(url, &[("grant_type", kind), ("assertion", &assertion)], WHOSE, deadline)
            }
            GcsCredentials::User { client_id, client_secret, refresh_token, .. } => {
                let fields = [
                    ("grant_type", "refresh_token"),
                    ("client_id", client_id),
                    ("client_secret", &client_secret.0),
                    ("refresh_token", &refresh_token.0),
                ];
                client.exchange(url, &fields, WHOSE, deadline)
            }
            _ => {
                let header = [("metadata-flavor", Secret("Google".into()))];
                client.of_machine(url, &header, false, "the instance's metadata", deadline)
            }
        }
    }

    fn denied(&self, status: u16, code: Option<&str>, has_token: bool) -> RemoteError {
        let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
        let what = match (status, has_token, &self.settings.credentials) {
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
        let what = format!("the store answers with status {status}{code}; {what}");
        match status {
            404 => RemoteError::Missing { what },
            _ => RemoteError::Denied { status, what },
        }
    }
}

impl Access for GcsAccess {
    fn name(&self) -> String {
        self.location.to_string()
    }

    fn server(&self) -> Url {
        self.url.clone()
    }

    fn request(&self, _: &[Asked], deadline: &Deadline) -> Result<Signed, AttemptError> {
        let fetch = |client: &TokenClient, url: &Url| self.fetch_token(client, url, deadline);
        let (bearer, generation) = self.tokens.get(deadline, fetch)?;
        let headers = bearer.map(|value| ("authorization", value)).into_iter().collect();
        Ok(Signed { url: self.url.clone(), headers, generation, region: String::new() })
    }

    fn refused(&self, signed: &Signed, refusal: &Refusal<'_>) -> Reaction {
        let has_token = !signed.headers.is_empty();
        let error = |status: u16| self.denied(status, element(refusal.body, "Code"), has_token);
        match refusal.status {
            status if self.tokens.renew(status, signed.generation, has_token, &HIDDEN) => {
                Reaction::Renew(error(status))
            }
            status @ (400 | 401 | 403 | 404) => Reaction::Fail(error(status)),
            _ => Reaction::Judge,
        }
    }
}
