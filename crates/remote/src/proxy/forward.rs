//! Requests for `http://` through a proxy: sent to the proxy as they are, with the whole URL in their first line.
//!
//! The HTTP library knows tunnels (`CONNECT`) only, and many proxies refuse those to ports other than 443. Its connections
//! can be replaced, so this one goes to the proxy and rewrites the head of each request on its way: `GET /path` becomes
//! `GET http://host/path`, with the proxy's password in a header.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport,
};
use ureq::{Error, Proxy};

/// Opens connections to the proxy of the configuration.
pub(crate) struct ForwardConnector {
    inner: DefaultConnector,
    /// The configuration of an agent without a proxy, for the connection to the proxy.
    direct: Config,
    proxy: Uri,
    /// The value of the header `Proxy-Authorization`.
    authorization: Option<String>,
}

/// Without the password.
impl fmt::Debug for ForwardConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardConnector").finish_non_exhaustive()
    }
}

impl ForwardConnector {
    /// `direct` is the configuration of the agent without its proxy.
    pub(crate) fn new(proxy: &Proxy, direct: Config) -> Self {
        let authorization = (proxy.username().is_some() || proxy.password().is_some()).then(|| {
            let [user, password] = [proxy.username(), proxy.password()].map(Option::unwrap_or_default);
            format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
        });
        ForwardConnector { inner: DefaultConnector::new(), direct, proxy: proxy.uri().clone(), authorization }
    }
}

impl Connector<()> for ForwardConnector {
    type Out = Forwarded;

    fn connect(&self, details: &ConnectionDetails, _: Option<()>) -> Result<Option<Forwarded>, Error> {
        let (Some(scheme), Some(authority)) = (details.uri.scheme_str(), details.uri.authority()) else {
            return Ok(None);
        };
        let origin = format!("{scheme}://{authority}");
        let to_proxy = ConnectionDetails {
            uri: &self.proxy,
            addrs: details.resolver.resolve(&self.proxy, &self.direct, details.timeout)?,
            resolver: details.resolver,
            config: &self.direct,
            request_level: details.request_level,
            now: details.now,
            timeout: details.timeout,
            current_time: details.current_time.clone(),
            run_connector: details.run_connector.clone(),
            register_shutdown: details.register_shutdown.clone(),
        };
        let connected = self.inner.connect(&to_proxy, None)?;
        let authorization = self.authorization.clone();
        Ok(connected.map(|inner| Forwarded { inner, origin, authorization, is_head: true }))
    }
}

/// A connection to a proxy.
pub(crate) struct Forwarded {
    inner: Box<dyn Transport>,
    /// Scheme, host and port of the server behind the proxy.
    origin: String,
    authorization: Option<String>,
    /// Whether the next output is the head of a request, and not its body.
    is_head: bool,
}

impl fmt::Debug for Forwarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarded").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Transport for Forwarded {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let mut len = amount;
        if std::mem::take(&mut self.is_head) {
            let output = self.inner.buffers().output();
            let head = output
                .get(..amount)
                .and_then(|head| rewritten(head, &self.origin, self.authorization.as_deref()));
            let place = head.as_ref().and_then(|head| output.get_mut(..head.len()));
            let (Some(head), Some(place)) = (head.as_ref(), place) else {
                return Err(std::io::Error::other("a request to a proxy is too long").into());
            };
            place.copy_from_slice(head);
            len = head.len();
        }
        self.inner.transmit_output(len, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        // A request is sent whole before its answer is read.
        self.is_head = true;
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }
}

/// The head of a request as a proxy wants it; `None` if it is none.
fn rewritten(head: &[u8], origin: &str, authorization: Option<&str>) -> Option<Vec<u8>> {
    let path = head.iter().position(|b| *b == b' ')? + 1;
    let line_end = head.windows(2).position(|two| two == b"\r\n")? + 2;
    let (method, rest) = head.split_at(path);
    let (target, headers) = rest.split_at_checked(line_end.checked_sub(path)?)?;
    let added = authorization.map(|value| format!("Proxy-Authorization: {value}\r\n")).unwrap_or_default();
    Some([method, origin.as_bytes(), target, added.as_bytes(), headers].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_gets_the_whole_url_and_the_rest_stays() {
        let head = |text: &str, authorization: Option<&str>| {
            rewritten(text.as_bytes(), "http://host:1", authorization)
                .map(|head| String::from_utf8(head).unwrap())
        };
        let request = "GET /a?b HTTP/1.1\r\nhost: host:1\r\n\r\n";
        assert_eq!(head(request, None).unwrap(), "GET http://host:1/a?b HTTP/1.1\r\nhost: host:1\r\n\r\n");
        assert_eq!(
            head(request, Some("Basic eA==")).unwrap(),
            "GET http://host:1/a?b HTTP/1.1\r\nProxy-Authorization: Basic eA==\r\nhost: host:1\r\n\r\n"
        );
        for text in ["", "GET", "GET /a", "\r\nGET /a"] {
            assert_eq!(head(text, None), None, "{text}");
        }
    }

    #[test]
    fn a_connection_shows_no_password() {
        let proxy = Proxy::new("http://me:hidden@proxy:1").unwrap();
        let connector = ForwardConnector::new(&proxy, ureq::Agent::config_builder().build());
        assert_eq!(connector.authorization.as_deref(), Some("Basic bWU6aGlkZGVu"));
        assert!(!format!("{connector:?}").contains("bWU6"));
    }
}
