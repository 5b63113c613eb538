//! Objects in buckets of S3, and of the many stores that speak its protocol: `s3://bucket/key`.
//!
//! Each request is signed when it is sent (`sigv4.rs`), by headers, so that URLs in messages have no secrets and a
//! signature never grows old. Keys come from the user's environment and profiles (`settings.rs`, `profile.rs`), which a
//! command reads, or from services of the machine (`metadata.rs`), which are asked again before the keys expire, and when
//! the store refuses them. A bucket in another region than was thought is found by the answer that says so.
//!
//! Not here: writing, listing, other signatures than version 4, and `AssumeRole`.

mod metadata;
mod profile;
mod settings;
mod sigv4;

pub use settings::{KeySource, Keys, S3Settings};

use crate::access::{Access, Header, Reaction, Refusal, SignedRequest};
use crate::answer::AttemptError;
use crate::object_name::ObjectName;
use crate::renewed::{Expiring, Renewed};
use crate::retry::Deadline;
use crate::time::ServerClock;
use crate::xml::element;
use crate::{RemoteError, Url};
use metadata::MetadataClient;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Access to one object.
pub(crate) struct S3Access {
    name: ObjectName,
    settings: S3Settings,
    region: Mutex<String>,
    keys: Renewed<Option<Keys>>,
    metadata: Option<MetadataClient>,
    /// The time for signatures.
    clock: ServerClock,
    /// Whether the instance was asked again after a denial, though it had no keys.
    was_asked_again: AtomicBool,
    /// The URL for the first region.
    server: Url,
}

impl S3Access {
    pub(crate) fn new(
        name: &ObjectName,
        settings: &S3Settings,
        timeout: Duration,
    ) -> Result<Self, RemoteError> {
        let server = settings.url(name, &settings.region);
        let server = server.map_err(|e| RemoteError::SetUp { what: format!("{name}: {e}") })?;
        let metadata = match &settings.keys {
            KeySource::Nothing | KeySource::Skipped | KeySource::Keys(_) => None,
            KeySource::WebIdentity { url, .. } => Some(MetadataClient::far(timeout, url)?),
            KeySource::Container { url, .. } | KeySource::Instance { url } => {
                Some(MetadataClient::near(timeout, url)?)
            }
        };
        Ok(S3Access {
            name: name.clone(),
            region: Mutex::new(settings.region.clone()),
            settings: settings.clone(),
            keys: Renewed::new(),
            metadata,
            clock: ServerClock::default(),
            was_asked_again: AtomicBool::new(false),
            server,
        })
    }

    fn region(&self) -> String {
        self.region.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The keys, renewed before they expire; `None`: requests are not signed.
    pub(crate) fn keys(&self, deadline: &Deadline) -> Result<Option<Keys>, AttemptError> {
        Ok(self.keys.get(deadline, || self.fetch_keys(deadline))?.0)
    }

    /// Gets the keys from where the settings say.
    fn fetch_keys(&self, deadline: &Deadline) -> Result<Expiring<Option<Keys>>, AttemptError> {
        match (&self.settings.keys, &self.metadata) {
            (KeySource::Keys(keys), _) => {
                if keys.valid_until().is_some_and(|end| end <= SystemTime::now()) {
                    return Err(AttemptError::Permanent(self.expired()));
                }
                // Nothing can renew them, so they serve until the store refuses them.
                Ok(Expiring::never(Some(keys.clone())))
            }
            (KeySource::Container { url, authorization, authorization_file }, Some(client)) => {
                client.container(url, authorization.as_ref(), authorization_file.as_deref(), deadline)
            }
            (KeySource::WebIdentity { url, role_arn, session_name, token_file }, Some(client)) => {
                client.web_identity(url, [role_arn, session_name], token_file, deadline)
            }
            (KeySource::Instance { url }, Some(client)) => client.instance(url, deadline),
            _ => Ok(Expiring::none()),
        }
    }

    fn expired(&self) -> RemoteError {
        let what = format!(
            "the credentials of {} have expired; get new ones, and start again",
            self.settings.keys.describe()
        );
        RemoteError::Denied { status: 403, what }
    }

    fn denied(&self, status: u16, code: Option<&str>, is_signed: bool) -> RemoteError {
        let advice = match (&self.settings.keys, status) {
            (_, 404) => "there is no such object".to_string(),
            (KeySource::Skipped, _) => {
                "the request was not signed, because of AWS_SKIP_SIGNATURE".to_string()
            }
            _ if !is_signed => "the request was not signed, because no credentials were found: set \
                AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
                .to_string(),
            (keys, _) => {
                let pays = match (code, self.settings.pays_requests) {
                    (Some("AccessDenied"), false) => {
                        "; if the bucket lets those who read pay, set AWS_REQUEST_PAYER=requester"
                    }
                    _ => "",
                };
                format!("the request was signed with the credentials of {}{pays}", keys.describe())
            }
        };
        RemoteError::refusal(status, code, &advice)
    }
}

impl Access for S3Access {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn server(&self) -> Url {
        self.settings.url(&self.name, &self.region()).unwrap_or_else(|_| self.server.clone())
    }

    fn request(&self, _: &[Header], deadline: &Deadline) -> Result<SignedRequest, AttemptError> {
        let region = self.region();
        let url = self.settings.url(&self.name, &region);
        let url = url.map_err(|e| AttemptError::Permanent(RemoteError::SetUp { what: e.to_string() }))?;
        let (keys, generation) = self.keys.get(deadline, || self.fetch_keys(deadline))?;
        let headers = match &keys {
            Some(keys) => sigv4::headers(&url, &region, keys, self.settings.pays_requests, self.clock.now()),
            // Without a signature nobody pays.
            None => Vec::new(),
        };
        Ok(SignedRequest { url, headers, generation, region })
    }

    fn refused(&self, request: &SignedRequest, refusal: &Refusal<'_>) -> Reaction {
        let code = element(refusal.body, "Code");
        let region = refusal.bucket_region.or_else(|| element(refusal.body, "Region"));
        let is_elsewhere = matches!(refusal.status, 301 | 307 | 400 | 403);
        let is_other = |region: &&str| request.region != *region && settings::is_region(region);
        let elsewhere = |what: &str| RemoteError::Redirect { what: what.to_string() };
        if let Some(region) = region.filter(|_| is_elsewhere).filter(is_other) {
            *self.region.lock().unwrap_or_else(PoisonError::into_inner) = region.to_string();
            return Reaction::Renew(elsewhere("the store names one region after the other"));
        }
        match refusal.status {
            301 if code.is_some() => Reaction::Fail(elsewhere(
                "the bucket is in another region, and the store does not say which; set AWS_REGION",
            )),
            // The signature is for another time than the server's.
            403 if code == Some("RequestTimeTooSkewed")
                && refusal.date.is_some_and(|date| self.clock.correct(date)) =>
            {
                Reaction::Renew(self.denied(403, code, true))
            }
            status @ (400 | 401 | 403) => self.access_denied(request, status, code),
            404 => Reaction::Fail(self.denied(404, code, !request.headers.is_empty())),
            _ => Reaction::Default,
        }
    }
}

impl S3Access {
    /// Decides whether other keys would help.
    fn access_denied(&self, request: &SignedRequest, status: u16, code: Option<&str>) -> Reaction {
        let is_signed = !request.headers.is_empty();
        let error = self.denied(status, code, is_signed);
        let may_help = match code {
            // Nothing has other keys than these.
            _ if self.metadata.is_none() => false,
            // An instance without keys may have been too busy to answer.
            _ if !is_signed => !self.was_asked_again.swap(true, Ordering::Relaxed),
            Some("AccessDenied" | "RequestTimeTooSkewed" | "InvalidObjectState") => false,
            _ => true,
        };
        match code {
            _ if may_help => {
                self.keys.refuse(request.generation);
                Reaction::Renew(error)
            }
            Some("ExpiredToken" | "ExpiredTokenException") => Reaction::Fail(self.expired()),
            _ => Reaction::Fail(error),
        }
    }
}
