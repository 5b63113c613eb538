//! The proxies of the environment: which one a request goes through, and what their refusals mean.
//!
//! The HTTP library reads the variables itself, but takes one proxy for both schemes, knows no networks and ports in
//! `NO_PROXY`, passes over a variable that it cannot parse, and asks even for `http://` by `CONNECT`, which most proxies
//! permit for port 443 only. So the choice is made here, by the scheme of each URL as curl and Go do, and `forward.rs`
//! sends plain requests. `exceptions.rs` has `NO_PROXY`.
//!
//! Not here: proxies of desktops and automatic configuration (PAC).

mod exceptions;
mod forward;

use crate::answer::AttemptError;
use crate::environment::Environment;
use crate::{RemoteError, Url};
use exceptions::Exceptions;
pub(crate) use forward::ForwardConnector;

/// A variable that names no proxy. Its value is not shown: it may have a password.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Malformed(&'static str);

/// A proxy with its name for messages: no user, no password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxyServer {
    pub(crate) proxy: ureq::Proxy,
    pub(crate) name: String,
}

impl ProxyServer {
    fn parse(value: &str) -> Option<Self> {
        let proxy = ureq::Proxy::new(value).ok()?;
        let host = Some(proxy.host()).filter(|host| !host.is_empty())?;
        let scheme = proxy.uri().scheme_str()?.to_ascii_lowercase();
        let name = format!("{scheme}://{host}:{}", proxy.port());
        Some(ProxyServer { proxy, name })
    }

    /// Whether requests for `http://` are sent to it as they are, with the whole URL, and not through a tunnel.
    pub(crate) fn forwards(&self) -> bool {
        matches!(self.proxy.protocol(), ureq::ProxyProtocol::Http | ureq::ProxyProtocol::Https)
    }

    /// Whether it is asked by TLS.
    pub(crate) fn is_https(&self) -> bool {
        self.proxy.protocol() == ureq::ProxyProtocol::Https
    }
}

/// The proxies of a user.
#[derive(Debug, Clone)]
pub(crate) struct Proxies {
    http: Result<Option<ProxyServer>, Malformed>,
    https: Result<Option<ProxyServer>, Malformed>,
    exceptions: Exceptions,
}

impl Proxies {
    /// No proxies, for services of the machine.
    pub(crate) fn none() -> Self {
        Proxies { http: Ok(None), https: Ok(None), exceptions: Exceptions::default() }
    }

    /// Reads the variables. Those in lower case win. `HTTP_PROXY` is not read in a CGI program (with `REQUEST_METHOD`):
    /// there its value is the header `Proxy` of a stranger's request.
    pub(crate) fn from_environment(env: Environment<'_>) -> Self {
        let is_cgi = env("REQUEST_METHOD").is_some();
        let first = |names: &[&'static str]| {
            let names = names.iter().filter(|name| !(is_cgi && **name == "HTTP_PROXY"));
            let found = names.copied().find_map(|name| Some((name, env(name)?)));
            found.map(|(name, value)| ProxyServer::parse(&value).ok_or(Malformed(name))).transpose()
        };
        let exceptions = env("no_proxy").or_else(|| env("NO_PROXY")).unwrap_or_default();
        Proxies {
            http: first(&["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]),
            https: first(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            exceptions: Exceptions::parse(&exceptions),
        }
    }

    /// The proxy for requests to this URL; `None`: they go to its server. Fails if the variable for its scheme names no
    /// proxy.
    pub(crate) fn of(&self, url: &Url) -> Result<Option<&ProxyServer>, RemoteError> {
        // A proxy would ask its own machine, and get the credentials in clear.
        if url.is_loopback() || self.exceptions.has(url) {
            return Ok(None);
        }
        self.of_scheme(url.is_https())
    }

    /// The proxy for one scheme.
    pub(crate) fn of_scheme(&self, is_https: bool) -> Result<Option<&ProxyServer>, RemoteError> {
        let found = if is_https { &self.https } else { &self.http };
        found.as_ref().map(Option::as_ref).map_err(|Malformed(name)| RemoteError::SetUp {
            what: format!("{name} does not name a proxy: set it to http://HOST:PORT, or unset it"),
        })
    }
}

/// The failure of a request that the proxy `name` did not pass on, for the reason that the HTTP library gives.
pub(crate) fn failure(reason: &str, name: &str) -> AttemptError {
    match status(reason) {
        Some(status) => refusal(status, name),
        None => AttemptError::transient(connection(format!("the proxy {name}: {reason}"))),
    }
}

/// The failure of a request that the proxy `name` answered itself, with this status.
pub(crate) fn refusal(status: u16, name: &str) -> AttemptError {
    match status {
        407 => AttemptError::Permanent(connection(format!(
            "the proxy {name} wants a user and a password (status 407): write them into the variable that names it, such as \
             HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"
        ))),
        400..=407 | 409..=428 | 430..=499 | 501 | 505 => AttemptError::Permanent(connection(format!(
            "the proxy {name} refuses to connect to this server (status {status}): NO_PROXY names the servers that are asked \
             without it"
        ))),
        _ => AttemptError::transient(connection(format!("the proxy {name} answers with status {status}"))),
    }
}

fn connection(what: String) -> RemoteError {
    RemoteError::Connection { what }
}

/// The status of a proxy's answer; `None` if there was none.
fn status(reason: &str) -> Option<u16> {
    let (_, answer) = reason.rsplit_once("responded ")?;
    answer.split('/').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of the proxy for a URL, in an environment.
    fn chosen(set: &[(&str, &str)], url: &str) -> Result<Option<String>, String> {
        let env =
            |name: &str| set.iter().find(|(found, _)| *found == name).map(|(_, value)| value.to_string());
        let proxies = Proxies::from_environment(&env);
        let found = proxies.of(&Url::parse(url).unwrap()).map_err(|e| e.to_string())?;
        Ok(found.map(|proxy| proxy.name.clone()))
    }

    #[test]
    fn the_scheme_of_the_url_chooses_the_variable() {
        let (plain, secure) = ("http://images.example.org/a", "https://images.example.org/a");
        for (set, http, https) in [
            (&[("HTTPS_PROXY", "http://s:1")][..], None, Some("http://s:1")),
            (&[("HTTP_PROXY", "http://p:1")], Some("http://p:1"), None),
            (&[("http_proxy", "l:1"), ("HTTP_PROXY", "http://u:1")], Some("http://l:1"), None),
            (
                &[("ALL_PROXY", "all"), ("https_proxy", "https://s")],
                Some("http://all:80"),
                Some("https://s:443"),
            ),
            (&[("all_proxy", "socks5://me:secret@a:9")], Some("socks5://a:9"), Some("socks5://a:9")),
            (&[("HTTP_PROXY", "http://p:1"), ("REQUEST_METHOD", "GET")], None, None),
            (&[("http_proxy", "http://p:1"), ("REQUEST_METHOD", "GET")], Some("http://p:1"), None),
            (&[("ALL_PROXY", "http://a:1"), ("no_proxy", "*")], None, None),
            (&[("ALL_PROXY", "http://a:1"), ("NO_PROXY", "images.example.org:80")], None, Some("http://a:1")),
            (
                &[("ALL_PROXY", "http://a:1"), ("NO_PROXY", "*"), ("no_proxy", "x")],
                Some("http://a:1"),
                Some("http://a:1"),
            ),
            (&[], None, None),
        ] {
            assert_eq!(chosen(set, plain), Ok(http.map(String::from)), "{set:?}");
            assert_eq!(chosen(set, secure), Ok(https.map(String::from)), "{set:?}");
            for near in ["http://localhost/a", "https://127.0.0.1:1/a", "http://[::1]/a"] {
                assert_eq!(chosen(set, near), Ok(None), "{set:?}");
            }
        }
    }

    #[test]
    fn a_variable_that_names_no_proxy_is_an_error_of_its_scheme_without_its_value() {
        for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
            let set = [(name, "secret://")];
            let error = chosen(&set, "https://example.org/").unwrap_err();
            assert!(error.contains(name) && !error.contains("secret"), "{error}");
            let is_for_both = name.eq_ignore_ascii_case("ALL_PROXY");
            assert_eq!(chosen(&set, "http://example.org/").is_err(), is_for_both, "{name}");
        }
        for value in ["", "http://", "ftp://host", "http://a b"] {
            assert!(chosen(&[("http_proxy", value)], "http://example.org/").is_err(), "{value}");
        }
    }

    #[test]
    fn refusals_of_a_proxy_are_final_and_outages_are_not() {
        for (status, is_final) in
            [(407, true), (403, true), (501, true), (408, false), (429, false), (502, false)]
        {
            let reason = format!("proxy server responded {status}/{status}");
            let failure = failure(&reason, "http://proxy:1");
            let (AttemptError::Permanent(error) | AttemptError::Transient { error, .. }) = &failure;
            assert!(error.to_string().contains("http://proxy:1"), "{error}");
            assert_eq!(matches!(failure, AttemptError::Permanent(_)), is_final, "{status}");
        }
        let away = failure("proxy server did not respond", "http://proxy:1");
        assert!(matches!(away, AttemptError::Transient { .. }));
    }
}
