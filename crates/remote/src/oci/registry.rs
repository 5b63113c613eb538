//! Asks a registry: with nothing, until it says what it wants; then with a token or a password.
//!
//! A token is fetched from the server that the challenge names, kept until it expires, and fetched again when the registry
//! refuses it. The login of the user goes to that server, so it is asked by `https` only, or on this machine if the
//! registry is there too. A registry elsewhere that the user names without TLS gets no login, and its server of tokens none.

use super::challenge::Challenge;
use super::docker_config::Login;
use super::manifest::{Descriptor, MAX_MANIFEST_BYTES, Manifest};
use super::reference::{OciReference, is_digest};
use crate::answer::{AttemptError, CHALLENGE, follow, redirect};
use crate::encoding::{digest_name, form};
use crate::oauth::{Bearer, bearer};
use crate::renewed::{Expiring, Renewed};
use crate::retry::Deadline;
use crate::small::{Answer, Method, SmallClient};
use crate::{RemoteError, Secret, Url};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The longest answer with a token, bytes.
const MAX_TOKEN_BYTES: usize = 1 << 20;
/// Challenges that are answered for one request, and redirects that are followed.
const MAX_CHALLENGES: usize = 2;
const MAX_REDIRECTS: usize = 5;
/// The life of a token that does not name one, seconds, as the protocol says.
const DEFAULT_LIFE_S: u64 = 60;
/// The manifests that are understood.
const ACCEPT: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";

/// A registry, as it is asked for one repository.
pub(super) struct Registry {
    reference: OciReference,
    server: Url,
    login: Option<Login>,
    /// Whether there is a login that is not sent without TLS.
    is_login_withheld: bool,
    client: SmallClient,
    timeout: Duration,
    /// The actions that tokens permit: `pull`, or `pull,push`.
    actions: &'static str,
    challenge: Mutex<Option<Challenge>>,
    /// The header `Authorization`; `None` if the challenge cannot be answered without a login.
    authorization: Renewed<Option<Secret>>,
}

impl Registry {
    /// Sends nothing.
    pub(super) fn new(
        reference: &OciReference,
        server: Url,
        login: Option<&Login>,
        timeout: Duration,
        actions: &'static str,
    ) -> Result<Self, RemoteError> {
        let sent = login.filter(|_| server.is_private());
        Ok(Registry {
            reference: reference.clone(),
            client: SmallClient::far(timeout, &server, MAX_MANIFEST_BYTES)?,
            server,
            login: sent.cloned(),
            is_login_withheld: login.is_some() && sent.is_none(),
            timeout,
            actions,
            challenge: Mutex::default(),
            authorization: Renewed::new(),
        })
    }

    pub(super) fn reference(&self) -> &OciReference {
        &self.reference
    }

    pub(super) fn blob_url(&self, digest: &str) -> Result<Url, RemoteError> {
        let text = format!("{}v2/{}/blobs/{digest}", self.server.as_str(), self.reference.name);
        Url::parse(&text).map_err(|e| RemoteError::SetUp { what: e.to_string() })
    }

    /// Its address.
    pub(super) fn server(&self) -> &Url {
        &self.server
    }

    pub(super) fn manifest_url(&self, target: &str) -> Result<Url, AttemptError> {
        let path = format!("{}v2/{}/manifests/{target}", self.server.as_str(), self.reference.name);
        Url::parse(&path).map_err(|e| AttemptError::refused(e.to_string()))
    }

    /// Where an upload of a blob begins.
    pub(super) fn uploads_url(&self) -> Result<Url, AttemptError> {
        let path = format!("{}v2/{}/blobs/uploads/", self.server.as_str(), self.reference.name);
        Url::parse(&path).map_err(|e| AttemptError::refused(e.to_string()))
    }

    fn challenge(&self) -> Option<Challenge> {
        self.challenge.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes the challenge of an answer with status 401. False if it cannot be answered.
    pub(super) fn challenged(&self, headers: Option<&str>, generation: u64) -> bool {
        let Some(challenge) = headers.and_then(Challenge::parse) else { return false };
        if challenge == Challenge::Basic && (self.login.is_none() || generation > 0) {
            return false;
        }
        *self.challenge.lock().unwrap_or_else(PoisonError::into_inner) = Some(challenge);
        self.authorization.refuse(generation);
        true
    }

    /// The header `Authorization` and its generation.
    pub(super) fn authorization(&self, deadline: &Deadline) -> Result<(Option<Secret>, u64), AttemptError> {
        let Some(challenge) = self.challenge() else { return Ok((None, 0)) };
        self.authorization.get(deadline, || match (&challenge, &self.login) {
            (Challenge::Basic, login) => Ok(Expiring::never(login.as_ref().and_then(Login::basic))),
            (Challenge::Bearer { .. }, Some(Login::RegistryToken(token))) => {
                Ok(Expiring::never(Some(Secret(format!("Bearer {}", token.0)))))
            }
            (Challenge::Bearer { realm, service, scope }, _) => {
                self.fetch_token(realm, service.as_deref(), scope.as_deref(), deadline)
            }
        })
    }

    /// The error of a registry that refuses whatever it is shown.
    pub(super) fn denial(&self, status: u16) -> RemoteError {
        let registry = &self.reference.registry;
        let what = match &self.login {
            Some(_) => format!(
                "the registry answers with status {status}; it was asked with the login for '{registry}' of docker or podman"
            ),
            None if self.is_login_withheld => format!(
                "the registry answers with status {status}; the login for '{registry}' is not sent without TLS: name the \
                 image with oci://"
            ),
            None => format!(
                "the registry answers with status {status}; there is no login for '{registry}' in the files of docker and \
                 podman: log in by 'docker login {registry}' or 'podman login {registry}'"
            ),
        };
        RemoteError::Denied { status, what }
    }

    /// The scope of a token, for a challenge that names this one or none. A registry that is asked whether it has a blob
    /// names `pull`, and a push goes on with the same token.
    fn scope(&self, named: Option<&str>) -> String {
        let repository = format!("repository:{}:", self.reference.name);
        match named {
            Some(named) if named.strip_prefix(&repository) != Some("pull") => named.to_string(),
            _ => repository + self.actions,
        }
    }

    fn fetch_token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
        deadline: &Deadline,
    ) -> Result<Bearer, AttemptError> {
        let refused =
            |what: &str| AttemptError::refused(format!("the server of tokens that it names {what}"));
        let url = Url::parse(realm).map_err(|e| refused(&format!("has no URL: {e}")))?;
        let is_without_secrets = !self.server.is_https() && self.login.is_none();
        if !(url.is_https() || url.is_loopback() && self.server.is_loopback() || is_without_secrets) {
            return Err(refused("is not asked by https://"));
        }
        let scope = self.scope(scope);
        let mut fields = vec![("scope", scope.as_str())];
        fields.extend(service.map(|service| ("service", service)));
        let client = SmallClient::far(self.timeout, &url, MAX_TOKEN_BYTES);
        let client = client.map_err(AttemptError::Permanent)?;
        let answer = match &self.login {
            Some(Login::IdentityToken(token)) => {
                let more = [
                    ("grant_type", "refresh_token"),
                    ("client_id", "pagefold"),
                    ("refresh_token", token.0.as_str()),
                ];
                fields.extend(more);
                client.ask(Method::Post(&form(&fields)), &url, &[], deadline)?
            }
            login => {
                let mark = if url.as_str().contains('?') { '&' } else { '?' };
                let url = Url::parse(&format!("{}{mark}{}", url.as_str(), form(&fields)))
                    .map_err(|e| refused(&format!("has no URL: {e}")))?;
                let basic = login.as_ref().and_then(Login::basic).map(|value| ("authorization", value));
                client.ask(Method::Get, &url, basic.as_slice(), deadline)?
            }
        };
        if matches!(answer.head.status, 400 | 401 | 403) {
            return Err(AttemptError::Permanent(self.denial(answer.head.status)));
        }
        let whose = "the server of tokens";
        bearer(&answer.expect_ok(whose)?, &["token", "access_token"], DEFAULT_LIFE_S, whose)
    }

    /// Reads a manifest by its tag or digest, and returns its digest too. One that is named by a digest is compared with
    /// it, and with its length if that is known.
    pub(super) fn manifest(
        &self,
        target: &str,
        len_bytes: Option<u64>,
        deadline: &Deadline,
    ) -> Result<(String, Manifest), AttemptError> {
        if len_bytes.is_some_and(|len| len > MAX_MANIFEST_BYTES as u64) {
            return Err(AttemptError::refused(format!(
                "a manifest is longer than {MAX_MANIFEST_BYTES} bytes"
            )));
        }
        let url = self.manifest_url(target)?;
        let answer = self.get(&url, deadline)?;
        match answer.head.status {
            404 => {
                let what = "the registry has no such image, or shows it to other users only".to_string();
                return Err(AttemptError::Permanent(RemoteError::Missing { what }));
            }
            401 | 403 => return Err(AttemptError::Permanent(self.denial(answer.head.status))),
            _ => {}
        }
        let content_type = answer.head.get("content-type");
        let body = answer.expect_ok("the registry")?;
        let found = digest_name(&digest(&SHA256, &body));
        if is_digest(target) && (found != target || len_bytes.is_some_and(|len| len != body.len() as u64)) {
            return Err(AttemptError::refused(format!(
                "the manifest '{target}' has another digest: {found}"
            )));
        }
        let manifest = Manifest::parse(&body, content_type.as_deref());
        manifest.map(|manifest| (found, manifest)).map_err(|e| AttemptError::refused(e.to_string()))
    }

    /// Reads a small blob, and compares it with its digest and length.
    pub(super) fn small_blob(&self, blob: &Descriptor, deadline: &Deadline) -> Result<Vec<u8>, AttemptError> {
        if blob.len_bytes > MAX_MANIFEST_BYTES as u64 {
            let what = format!("the blob '{}' is longer than {MAX_MANIFEST_BYTES} bytes", blob.digest);
            return Err(AttemptError::refused(what));
        }
        let url = self.blob_url(&blob.digest).map_err(AttemptError::Permanent)?;
        let answer = self.get(&url, deadline)?;
        match answer.head.status {
            404 => {
                let what = format!("the registry has the manifest, and not the blob '{}'", blob.digest);
                return Err(AttemptError::Permanent(RemoteError::Missing { what }));
            }
            401 | 403 => return Err(AttemptError::Permanent(self.denial(answer.head.status))),
            _ => {}
        }
        let body = answer.expect_ok("the registry")?;
        match digest_name(&digest(&SHA256, &body)) {
            found if found == blob.digest => Ok(body),
            found => {
                let wanted = blob.digest.clone();
                Err(AttemptError::Permanent(RemoteError::OtherDigest { found, wanted }))
            }
        }
    }

    /// Asks for a manifest or a small blob, and answers challenges.
    fn get(&self, url: &Url, deadline: &Deadline) -> Result<Answer, AttemptError> {
        let mut challenges = 0;
        loop {
            let (authorization, generation) = self.authorization(deadline)?;
            let answer = self.get_redirected(url, authorization, deadline)?;
            if answer.head.status != 401 || challenges == MAX_CHALLENGES {
                return Ok(answer);
            }
            if !self.challenged(answer.head.challenge().as_deref(), generation) {
                return Ok(answer);
            }
            challenges += 1;
        }
    }

    /// The failure of a request without an answer, with the scheme that was spoken.
    fn named(&self, failure: AttemptError, url: &Url) -> AttemptError {
        let name = self.server.as_str().trim_end_matches('/');
        match failure {
            AttemptError::Permanent(RemoteError::NotTls) if url.origin() == self.server.origin() => {
                let OciReference { registry, name: repository, .. } = &self.reference;
                let what = format!(
                    "'{name}' does not speak TLS: the name of an image in a registry without it begins with \
                     oci+http://{registry}/{repository}"
                );
                AttemptError::Permanent(RemoteError::Connection { what })
            }
            failure => failure.map_connection(|what| format!("'{name}': {what}")),
        }
    }

    /// Follows redirects. The header `Authorization` is for the registry only.
    fn get_redirected(
        &self,
        url: &Url,
        authorization: Option<Secret>,
        deadline: &Deadline,
    ) -> Result<Answer, AttemptError> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let is_registry = url.origin() == self.server.origin();
            let own = authorization.clone().filter(|_| is_registry).map(|value| ("authorization", value));
            let accept = ("accept", Secret(ACCEPT.to_string()));
            let headers: Vec<_> = own.into_iter().chain([accept]).collect();
            let asked = self.client.ask(Method::Get, &url, &headers, deadline);
            let mut answer = asked.map_err(|failure| self.named(failure, &url))?;
            if !is_registry {
                // Only the registry itself says who gets the login.
                answer.head.headers.remove(CHALLENGE);
            }
            match (answer.head.status, answer.head.get("location")) {
                (301 | 302 | 303 | 307 | 308, Some(location)) => {
                    url = follow(&url, &location, self.server.is_https())?;
                }
                _ => return Ok(answer),
            }
        }
        Err(redirect(format!("there are more than {MAX_REDIRECTS}")))
    }
}

impl Login {
    /// The header of user and password.
    fn basic(&self) -> Option<Secret> {
        match self {
            Login::Password { user, password } => {
                let encoded = STANDARD.encode(format!("{user}:{}", password.0));
                Some(Secret(format!("Basic {encoded}")))
            }
            Login::IdentityToken(_) | Login::RegistryToken(_) => None,
        }
    }
}
