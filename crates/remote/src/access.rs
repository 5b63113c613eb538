//! How a store is asked for an object: turns the name of an object into a URL and headers, again for each request.
//!
//! The client sends the ranges, repeats and counts; an [`Access`] knows what the store wants to see: nothing for a plain
//! URL, a signature for `s3://` and `az://`, a token for `gs://` and `oci://`. It is asked before each request, so that a
//! signature is as young as its request, and it keeps what is costly to get ([`crate::renewed`]). It judges refusals,
//! because only the store's protocol says whether other credentials or another server would help.

use crate::answer::AttemptError;
use crate::retry::Deadline;
use crate::{RemoteError, Secret, Url};
use std::fmt::Display;
use std::time::SystemTime;

/// Most bytes of the body of a refusal that an [`Access`] gets to see.
pub(crate) const MAX_REFUSAL_BYTES: u64 = 4 << 10;

/// A header that the client adds to a request: its name in lower case, and its value.
pub(crate) type Header = (&'static str, String);

/// Parses a URL of the settings of a store; the error names the location, whose settings they are.
pub(crate) fn store_url(text: &str, location: &impl Display) -> Result<Url, RemoteError> {
    Url::parse(text).map_err(|e| RemoteError::SetUp { what: format!("{location}: {e}") })
}

/// A request as the store wants it: where to send it, and with which headers.
#[derive(Clone)]
pub(crate) struct SignedRequest {
    pub(crate) url: Url,
    /// They are sent to the server of the URL only.
    pub(crate) headers: Vec<(&'static str, Secret)>,
    /// The credentials that were used, as [`crate::renewed::Renewed`] counts them; 0 if there are none to renew.
    pub(crate) generation: u64,
    /// The region that it was made for; empty where there are none.
    pub(crate) region: String,
}

impl SignedRequest {
    /// A request with the header `Authorization`, if there is one.
    pub(crate) fn with_authorization(url: &Url, value: Option<Secret>, generation: u64) -> Self {
        let headers = value.map(|value| ("authorization", value)).into_iter().collect();
        SignedRequest { url: url.clone(), headers, generation, region: String::new() }
    }

    /// Whether it has the header `Authorization`.
    pub(crate) fn has_authorization(&self) -> bool {
        self.headers.iter().any(|(name, _)| *name == "authorization")
    }
}

/// The refusal of a server: a status that is neither 2xx nor transient.
#[derive(Debug, Default)]
pub(crate) struct Refusal<'a> {
    pub(crate) status: u16,
    /// The header `WWW-Authenticate`, or all of them, each on a line.
    pub(crate) challenge: Option<&'a str>,
    /// The header `Date`: the time of the server.
    pub(crate) date: Option<SystemTime>,
    /// The header `x-amz-bucket-region`.
    pub(crate) bucket_region: Option<&'a str>,
    /// The beginning of the body.
    pub(crate) body: &'a str,
}

/// The consequence of a refusal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// The client treats the answer as that of any server.
    Default,
    /// Another request, made anew, may be answered. The client limits how many there are; then the read fails so.
    Renew(RemoteError),
    /// The read fails.
    Fail(RemoteError),
}

/// Access to one object of a store.
pub(crate) trait Access: Send + Sync {
    /// The name of the object for messages, without secrets.
    fn name(&self) -> String;

    /// The URL of the object, without anything that signs a request. The client needs its scheme and its
    /// [`origin`](Url::origin), which tells a redirect elsewhere.
    fn server(&self) -> Url;

    /// Makes a request. `added` are the headers that the client adds: the range, and the condition that names the version. May
    /// ask servers for credentials, until the deadline.
    fn request(&self, added: &[Header], deadline: &Deadline) -> Result<SignedRequest, AttemptError>;

    /// Decides what follows from a refusal of a request that it made.
    fn refused(&self, _request: &SignedRequest, _refusal: &Refusal<'_>) -> Reaction {
        Reaction::Default
    }

    /// The length of an object whose name is a digest, so that it has one version only.
    fn fixed_len_bytes(&self) -> Option<u64> {
        None
    }

    /// The digest that is the name of the object, `sha256:HEX`: all of its bytes have it.
    fn content_digest(&self) -> Option<&str> {
        None
    }
}

/// A plain URL, perhaps with the header `Authorization`.
pub(crate) struct PlainAccess {
    url: Url,
    authorization: Option<Secret>,
}

impl PlainAccess {
    /// Fails if there are credentials and the URL is neither of `https` nor of this machine.
    pub(crate) fn new(url: &Url, authorization: Option<Secret>) -> Result<Self, RemoteError> {
        if authorization.is_some() && !url.is_private() {
            let what =
                "credentials are sent to https:// only; use such a URL, or unset PAGEFOLD_HTTP_AUTHORIZATION";
            return Err(RemoteError::SetUp { what: what.to_string() });
        }
        Ok(PlainAccess { url: url.clone(), authorization })
    }
}

impl Access for PlainAccess {
    fn name(&self) -> String {
        self.url.to_string()
    }

    fn server(&self) -> Url {
        self.url.clone()
    }

    fn request(&self, _: &[Header], _: &Deadline) -> Result<SignedRequest, AttemptError> {
        Ok(SignedRequest::with_authorization(&self.url, self.authorization.clone(), 0))
    }
}
