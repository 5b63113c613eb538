//! Sends the requests of others as this crate sends its own: the same agents, proxies and certificates.
//!
//! `pagefold-bucket` writes to stores by a library that makes and signs requests and judges answers. This sends one request
//! and reads the answer whole. It does not sign, repeat or redirect: a redirect is an answer.

use crate::agents::{Agents, Route};
use crate::answer::AttemptError;
use crate::client::{check_proxy, failure};
use crate::environment::variable;
use crate::proxy::Proxies;
use crate::{RemoteError, Url};
use std::io::{ErrorKind, Read};
use std::time::Duration;
pub use ureq::http;

/// The longest answer, bytes. A page of a list of objects has half a mebibyte.
const MAX_ANSWER_BYTES: u64 = 8 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct TransportError {
    /// Whether the server may have received the request.
    pub kind: TransportFailure,
    /// The reason, for users.
    pub error: RemoteError,
}

/// Whether a server may have received a request that it did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportFailure {
    /// There was no connection: the server did not receive it.
    NoConnection,
    /// The time is over; the server may have done what it asks.
    Timeout,
    /// The connection broke; the server may have done what it asks.
    Broken,
    /// Another request would fail too.
    Permanent,
}

/// Agents for the requests to one server.
pub struct Transport {
    agents: Agents,
}

impl Transport {
    /// Agents for this server. `timeout` is the longest time of a request; a server may be silent for a third of it.
    pub fn new(server: &str, timeout: Duration) -> Result<Self, RemoteError> {
        let server =
            Url::parse(server).map_err(|e| RemoteError::SetUp { what: format!("'{server}': {e}") })?;
        let proxies = Proxies::from_environment(&variable);
        Ok(Transport { agents: Agents::new(timeout, &server, server.is_https(), proxies)? })
    }

    /// Sends a request, and reads the whole answer.
    pub fn send(
        &self,
        head: http::request::Parts,
        body: &[u8],
    ) -> Result<http::Response<Vec<u8>>, TransportError> {
        let permanent = |what: String| TransportError {
            kind: TransportFailure::Permanent,
            error: RemoteError::SetUp { what },
        };
        // The error of the parser has no secret; the URL may have one.
        let url =
            Url::parse(&head.uri.to_string()).map_err(|e| permanent(format!("a URL of the store: {e}")))?;
        let route = self.agents.of(&url);
        let Route { agent, proxy } =
            route.map_err(|error| TransportError { kind: TransportFailure::Permanent, error })?;
        let is_bare = body.is_empty() && !matches!(head.method, http::Method::PUT | http::Method::POST);
        let sent = match is_bare {
            true => agent.run(http::Request::from_parts(head, ())),
            false => agent.run(http::Request::from_parts(head, body)),
        };
        let answer =
            sent.map_err(|e| TransportError { kind: kind(&e), error: error(failure(e, true, proxy)) })?;
        let (head, body) = answer.into_parts();
        check_proxy(head.status.as_u16(), &url, proxy)
            .map_err(|e| TransportError { kind: TransportFailure::Broken, error: error(e) })?;
        let mut bytes = Vec::new();
        body.into_reader().take(MAX_ANSWER_BYTES + 1).read_to_end(&mut bytes).map_err(|e| {
            TransportError {
                kind: TransportFailure::Broken,
                error: RemoteError::Connection { what: format!("the body of the answer: {e}") },
            }
        })?;
        match bytes.len() as u64 <= MAX_ANSWER_BYTES {
            true => Ok(http::Response::from_parts(head, bytes)),
            false => Err(permanent(format!("the store's answer is longer than {MAX_ANSWER_BYTES} bytes"))),
        }
    }
}

fn error(failure: AttemptError) -> RemoteError {
    match failure {
        AttemptError::Permanent(error) | AttemptError::Transient { error, .. } => error,
    }
}

fn kind(error: &ureq::Error) -> TransportFailure {
    match error {
        ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed => TransportFailure::NoConnection,
        ureq::Error::Timeout(_) => TransportFailure::Timeout,
        ureq::Error::Io(e) => match e.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
                TransportFailure::NoConnection
            }
            ErrorKind::TimedOut | ErrorKind::WouldBlock => TransportFailure::Timeout,
            // TLS that fails, and names that are not known.
            ErrorKind::InvalidData | ErrorKind::Other => TransportFailure::Permanent,
            _ => TransportFailure::Broken,
        },
        ureq::Error::Protocol(_) => TransportFailure::Broken,
        _ => TransportFailure::Permanent,
    }
}
