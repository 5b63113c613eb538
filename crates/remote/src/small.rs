//! Small answers of servers: tokens, credentials, manifests. They are read whole, up to a limit, and nothing is cached.
//!
//! Ranges of objects are the business of `client.rs`; this is for everything that a store asks before it.

use crate::agents::{Agents, Route};
use crate::answer::{AttemptError, Head};
use crate::client::{check_proxy, failure};
use crate::environment::variable;
use crate::proxy::Proxies;
use crate::renewed::Expiring;
use crate::retry::Deadline;
use crate::{RemoteError, Secret, Url};
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use ureq::SendBody;

/// The longest time to connect to a service of the machine. Where none accepts a connection soon, there is none.
const NEAR_CONNECT: Duration = Duration::from_secs(1);
/// The longest answer of a service of credentials, bytes.
pub(crate) const MAX_CREDENTIALS_BYTES: usize = 64 << 10;

/// The methods that stores need.
pub(crate) enum Method<'a> {
    Get,
    /// Without a body.
    Put,
    /// With a form, as a browser encodes it.
    Post(&'a str),
    /// Without a body.
    PostNothing,
    Head,
    /// With these bytes.
    PutBytes {
        media_type: &'static str,
        bytes: &'a [u8],
    },
    /// With the rest of a file, which is this long.
    PutFile {
        media_type: &'static str,
        file: &'a mut File,
        len_bytes: u64,
    },
}

/// An answer with its body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Fails unless the status is 200. A status that may go away is a transient failure.
    pub(crate) fn expect_ok(self, whose: &str) -> Result<Vec<u8>, AttemptError> {
        match self.head.status {
            200 => Ok(self.body),
            status => {
                let why = if status == 429 { ": it limits the number of requests" } else { "" };
                let what = format!("{whose} answers with status {status}{why}");
                Err(self.head.failure(RemoteError::Denied { status, what }))
            }
        }
    }
}

/// A client for small answers.
pub(crate) struct SmallClient {
    agents: Agents,
    /// The longest time to connect.
    connect: Duration,
    /// The longest time of a request.
    limit: Duration,
    /// The longest body that is accepted, bytes.
    max_bytes: usize,
    /// Whether the service has sent credentials: then that it does not answer does not mean that it is missing.
    is_present: AtomicBool,
}

impl SmallClient {
    /// A client for this service elsewhere, through the proxy of the environment. If the URL is of `https`, no other scheme
    /// is asked.
    pub(crate) fn far(timeout: Duration, service: &Url, max_bytes: usize) -> Result<Self, RemoteError> {
        let proxies = Proxies::from_environment(&variable);
        let agents = Agents::new(timeout, service, service.is_https(), proxies)?;
        let is_present = AtomicBool::new(false);
        Ok(SmallClient { agents, connect: timeout, limit: timeout, max_bytes, is_present })
    }

    /// A client for credentials of services of the machine or its network, which no proxy reaches.
    pub(crate) fn near(timeout: Duration, service: &Url, limit: Duration) -> Result<Self, RemoteError> {
        let agents = Agents::new(timeout, service, service.is_https(), Proxies::none())?;
        let (connect, max_bytes) = (NEAR_CONNECT.min(timeout), MAX_CREDENTIALS_BYTES);
        let is_present = AtomicBool::new(false);
        Ok(SmallClient { agents, connect, limit, max_bytes, is_present })
    }

    /// The same client, with another limit of the time to connect.
    pub(crate) fn connecting_within(self, connect: Duration) -> Self {
        SmallClient { connect, ..self }
    }

    /// Sends one request. Redirects are answers.
    pub(crate) fn ask(
        &self,
        method: Method<'_>,
        url: &Url,
        headers: &[(&'static str, Secret)],
        deadline: &Deadline,
    ) -> Result<Answer, AttemptError> {
        let Route { agent, proxy } = self.agents.of(url).map_err(AttemptError::Permanent)?;
        let sent = match method {
            Method::Get => self.prepared(agent.get(url.as_str()), headers, deadline).call(),
            Method::Put => self.prepared(agent.put(url.as_str()), headers, deadline).send_empty(),
            Method::Post(form) => {
                let request = self.prepared(agent.post(url.as_str()), headers, deadline);
                request.header("content-type", "application/x-www-form-urlencoded").send(form)
            }
            Method::PostNothing => self.prepared(agent.post(url.as_str()), headers, deadline).send_empty(),
            Method::Head => self.prepared(agent.head(url.as_str()), headers, deadline).call(),
            Method::PutBytes { media_type, bytes } => {
                let request = self.prepared(agent.put(url.as_str()), headers, deadline);
                request.header("content-type", media_type).send(bytes)
            }
            Method::PutFile { media_type, file, len_bytes } => {
                let request = self.prepared(agent.put(url.as_str()), headers, deadline);
                let request = request.header("content-type", media_type);
                let mut body = file.take(len_bytes);
                request.header("content-length", len_bytes.to_string()).send(SendBody::from_reader(&mut body))
            }
        };
        let (head, body) = sent.map_err(|e| failure(e, true, proxy))?.into_parts();
        check_proxy(head.status.as_u16(), url, proxy)?;
        let head = Head { status: head.status.as_u16(), headers: head.headers };
        let mut reader = body.into_reader().take(self.max_bytes as u64 + 1);
        let mut body = Vec::new();
        reader.read_to_end(&mut body).map_err(|e| {
            let what = format!("the body of the answer: {e}");
            AttemptError::transient(RemoteError::Connection { what })
        })?;
        if body.len() > self.max_bytes {
            return Err(AttemptError::refused(format!("its body is longer than {} bytes", self.max_bytes)));
        }
        Ok(Answer { head, body })
    }

    fn prepared<B>(
        &self,
        request: ureq::RequestBuilder<B>,
        headers: &[(&'static str, Secret)],
        deadline: &Deadline,
    ) -> ureq::RequestBuilder<B> {
        let limit = deadline.remaining().min(self.limit);
        let config =
            request.config().timeout_global(Some(limit)).timeout_connect(Some(limit.min(self.connect)));
        let request = config.build().header("accept-encoding", "identity");
        headers.iter().fold(request, |request, (name, Secret(value))| request.header(*name, value))
    }

    /// Whether the service has sent credentials before.
    pub(crate) fn is_present(&self) -> bool {
        self.is_present.load(Ordering::Relaxed)
    }

    /// Takes a failure of a service of the machine as no credentials if there is no such service, unless it `is_expected`.
    pub(crate) fn judge<T>(
        &self,
        result: Result<Expiring<Option<T>>, AttemptError>,
        is_expected: bool,
    ) -> Result<Expiring<Option<T>>, AttemptError> {
        match result {
            Ok(answer) => {
                self.is_present.fetch_or(answer.value.is_some(), Ordering::Relaxed);
                Ok(answer)
            }
            // A service that answers is there, and may be busy.
            Err(error @ AttemptError::Transient { error: RemoteError::Denied { .. }, .. }) => Err(error),
            Err(_) if !self.is_present() && !is_expected => Ok(Expiring::none()),
            Err(error) => Err(error),
        }
    }
}
