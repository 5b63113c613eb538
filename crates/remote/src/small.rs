//! Small answers of servers: tokens, credentials, manifests. They are read whole, up to a limit, and nothing is cached.
//!
//! Ranges of objects are the business of `client.rs`; this is for everything that a store asks before it.

use crate::agents::Agents;
use crate::answer::AttemptError;
use crate::client::{challenge, failure};
use crate::retry::Deadline;
use crate::{RemoteError, Secret, Url};
use std::io::Read;
use std::time::Duration;

/// A request for something small.
pub(crate) struct Ask<'a> {
    pub(crate) method: Method<'a>,
    pub(crate) url: &'a Url,
    pub(crate) headers: Vec<(&'static str, Secret)>,
    /// The longest body that is accepted, bytes.
    pub(crate) max_bytes: usize,
    /// The longest time of this request.
    pub(crate) limit: Duration,
}

/// The methods that stores need.
pub(crate) enum Method<'a> {
    Get,
    /// Without a body.
    Put,
    /// With a form, as a browser encodes it.
    Post(&'a str),
}

/// An answer with its body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    /// The headers `WWW-Authenticate`, each on a line.
    pub(crate) challenge: Option<String>,
    pub(crate) location: Option<String>,
    pub(crate) content_type: Option<String>,
}

impl Answer {
    /// Fails unless the status is 200. A status that may go away is a transient failure.
    pub(crate) fn expect_ok(self, whose: &str) -> Result<Vec<u8>, AttemptError> {
        match self.status {
            200 => Ok(self.body),
            status => {
                let what = format!("{whose} answers with status {status}");
                let error = RemoteError::Denied { status, what };
                Err(match status {
                    408 | 429 | 500..=599 => AttemptError::transient(error),
                    _ => AttemptError::Permanent(error),
                })
            }
        }
    }
}

/// The longest time to connect to a service of the machine. Where none accepts a connection soon, there is none.
const NEAR_CONNECT: Duration = Duration::from_secs(1);

/// A client for small answers.
pub(crate) struct SmallClient {
    agents: Agents,
    /// Whether proxies of the environment are used.
    with_proxy: bool,
    /// The longest time to connect.
    connect: Duration,
}

impl SmallClient {
    /// `is_https`: no other scheme is asked.
    pub(crate) fn new(timeout: Duration, is_https: bool) -> Result<Self, RemoteError> {
        Ok(SmallClient { agents: Agents::new(timeout, is_https, true)?, with_proxy: true, connect: timeout })
    }

    /// A client for services of the machine or its network, which no proxy reaches.
    pub(crate) fn without_proxy(timeout: Duration, is_https: bool) -> Result<Self, RemoteError> {
        let connect = NEAR_CONNECT.min(timeout);
        Ok(SmallClient { agents: Agents::new(timeout, is_https, false)?, with_proxy: false, connect })
    }

    /// Sends one request. Redirects are answers.
    pub(crate) fn ask(&self, ask: &Ask<'_>, deadline: &Deadline) -> Result<Answer, AttemptError> {
        let limit = deadline.remaining().min(ask.limit);
        let (limit, connect) = (Some(limit), Some(limit.min(self.connect)));
        let url = ask.url.as_str();
        let agent = self.agents.of(ask.url).map_err(AttemptError::Permanent)?;
        // A proxy would ask its own machine, and get the credentials in clear.
        let with_proxy = self.with_proxy && !ask.url.is_loopback();
        let sent = match ask.method {
            Method::Get => {
                let mut config = agent.get(url).config().timeout_global(limit).timeout_connect(connect);
                if !with_proxy {
                    config = config.proxy(None);
                }
                with_headers(config.build(), ask).call()
            }
            Method::Put => {
                let mut config = agent.put(url).config().timeout_global(limit).timeout_connect(connect);
                if !with_proxy {
                    config = config.proxy(None);
                }
                with_headers(config.build(), ask).send_empty()
            }
            Method::Post(form) => {
                let mut config = agent.post(url).config().timeout_global(limit).timeout_connect(connect);
                if !with_proxy {
                    config = config.proxy(None);
                }
                let request = with_headers(config.build(), ask);
                request.header("content-type", "application/x-www-form-urlencoded").send(form)
            }
        };
        let answer = sent.map_err(|e| failure(e, true))?;
        let header = |name: &str| {
            let value = answer.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
            value.map(std::borrow::Cow::into_owned)
        };
        let status = answer.status().as_u16();
        let (location, content_type) = (header("location"), header("content-type"));
        let challenge = challenge(answer.headers());
        let mut body = Vec::new();
        let mut reader = answer.into_body().into_reader().take(ask.max_bytes as u64 + 1);
        reader.read_to_end(&mut body).map_err(|e| {
            let what = format!("the body of the answer: {e}");
            AttemptError::transient(RemoteError::Connection { what })
        })?;
        if body.len() > ask.max_bytes {
            return Err(AttemptError::refused(format!("its body is longer than {} bytes", ask.max_bytes)));
        }
        Ok(Answer { status, body, challenge, location, content_type })
    }
}

fn with_headers<B>(request: ureq::RequestBuilder<B>, ask: &Ask<'_>) -> ureq::RequestBuilder<B> {
    let request = request.header("accept-encoding", "identity");
    ask.headers.iter().fold(request, |request, (name, Secret(value))| request.header(*name, value))
}

/// Fields as the query of a URL or a form has them.
pub(crate) fn form(fields: &[(&str, &str)]) -> String {
    let encode = |text: &str| {
        text.bytes().fold(String::new(), |mut encoded, byte| {
            match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                true => encoded.push(char::from(byte)),
                false => encoded.push_str(&format!("%{byte:02X}")),
            }
            encoded
        })
    };
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
    fields.join("&")
}
