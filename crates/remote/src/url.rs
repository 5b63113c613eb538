//! The names of objects: absolute URLs of `http` and `https`, and credentials that no message shows.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest URL, bytes.
const MAX_BYTES: usize = 8 << 10;

/// Why a text is no URL that this crate reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It begins neither with `http://` nor with `https://`.
    #[error("a location begins with http:// or https://")]
    Scheme,
    /// It names no host.
    #[error("the URL names no host")]
    NoHost,
    /// It has a user or a password, which command lines and lists of processes would show.
    #[error("the URL has a user or a password in it; leave them out, and use PAGEFOLD_HTTP_AUTHORIZATION")]
    Credentials,
    /// It has spaces, control characters, or characters beyond ASCII.
    #[error("the URL has characters that must be percent-encoded")]
    Characters,
    /// It is longer than 8 KiB.
    #[error("the URL is longer than {MAX_BYTES} bytes")]
    TooLong,
}

/// An absolute URL. `Display` and `Debug` leave the query out, because signed URLs have their signature there.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// Without a fragment.
    text: String,
    /// Where the path, the query or the end follows the host and port.
    origin_bytes: usize,
}

impl Url {
    /// Parses an absolute URL. A fragment (`#...`) is dropped.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let text = text.split('#').next().unwrap_or_default();
        let authority_start = scheme(text).ok_or(UrlError::Scheme)?.len() + "://".len();
        let authority = text[authority_start..].split(['/', '?']).next().unwrap_or_default();
        match () {
            () if text.len() > MAX_BYTES => Err(UrlError::TooLong),
            () if !text.bytes().all(|b| b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&b)) => {
                Err(UrlError::Characters)
            }
            () if authority.contains('@') => Err(UrlError::Credentials),
            () if authority.is_empty() || authority.starts_with(':') => Err(UrlError::NoHost),
            () => Ok(Url { text: text.to_string(), origin_bytes: authority_start + authority.len() }),
        }
    }

    /// Whether the text begins as the URLs of this crate do.
    pub fn has_scheme(text: &str) -> bool {
        scheme(text).is_some()
    }

    /// The whole URL, query included.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the scheme is `https`.
    pub fn is_https(&self) -> bool {
        scheme(&self.text).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"))
    }

    /// Scheme, host and port in lower case, the port always: equal for URLs of one server.
    pub fn origin(&self) -> String {
        let origin = self.text[..self.origin_bytes].to_ascii_lowercase();
        let host = origin.split("://").nth(1).unwrap_or_default();
        // The colons of an IPv6 address are in brackets.
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        match (has_port, self.is_https()) {
            (true, _) => origin,
            (false, true) => format!("{origin}:443"),
            (false, false) => format!("{origin}:80"),
        }
    }

    /// Whether the host is this machine, as an address or as `localhost`.
    pub fn is_loopback(&self) -> bool {
        let host = self.host();
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    /// Host and port as they are in the URL: the header `Host`.
    pub(crate) fn host_and_port(&self) -> &str {
        self.text[..self.origin_bytes].split("://").nth(1).unwrap_or_default()
    }

    /// The host in lower case, an IPv6 address in brackets.
    pub(crate) fn host(&self) -> String {
        let origin = self.origin();
        let host = origin.split("://").nth(1).and_then(|host| host.rsplit_once(':'));
        host.map_or("", |(host, _)| host).to_string()
    }

    /// The path, without the query; at least a slash.
    pub(crate) fn path(&self) -> &str {
        let path = self.text[self.origin_bytes..].split('?').next().unwrap_or_default();
        if path.is_empty() { "/" } else { path }
    }

    /// The query without its mark; empty if there is none.
    pub(crate) fn query(&self) -> &str {
        self.text.split_once('?').map_or("", |(_, query)| query)
    }

    /// Whether nobody on the way reads what is sent to this server: it is asked by `https`, or on this machine.
    pub(crate) fn is_private(&self) -> bool {
        self.is_https() || self.is_loopback()
    }

    /// The object whose path is this one's with `suffix` appended; the query stays.
    pub fn with_suffix(&self, suffix: &str) -> Self {
        let path_end = self.text.find('?').unwrap_or(self.text.len());
        let (path, query) = self.text.split_at(path_end);
        Url { text: format!("{path}{suffix}{query}"), origin_bytes: self.origin_bytes }
    }

    /// The URL that `reference` (the header `Location` of a redirect) means in an answer to this one.
    pub(crate) fn join(&self, reference: &str) -> Result<Self, UrlError> {
        let origin = &self.text[..self.origin_bytes];
        let path_end = self.text.find('?').unwrap_or(self.text.len());
        let path = &self.text[..path_end];
        let joined = match reference {
            _ if Self::has_scheme(reference) => reference.to_string(),
            _ if reference.starts_with("//") => {
                format!("{}:{reference}", scheme(&self.text).unwrap_or_default())
            }
            _ if reference.starts_with('/') => format!("{origin}{reference}"),
            _ if reference.starts_with('?') => format!("{path}{reference}"),
            // A scheme that this crate does not read.
            _ if reference.split(['/', '?', '#']).next().is_some_and(|first| first.contains(':')) => {
                return Err(UrlError::Scheme);
            }
            _ => {
                let folder_end = path.rfind('/').filter(|at| *at >= self.origin_bytes);
                format!("{}/{reference}", folder_end.map_or(origin, |at| &path[..at]))
            }
        };
        Self::parse(&joined)
    }
}

fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")).then_some(scheme)
}

/// Without the query.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text.split_once('?') {
            Some((path, _)) => write!(f, "{path}?..."),
            None => f.write_str(&self.text),
        }
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A text that is not shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn urls_without_a_host_or_with_credentials_are_refused() {
        assert_eq!(Url::parse("/srv/app.erofs"), Err(UrlError::Scheme));
        assert_eq!(Url::parse("ftp://host/x"), Err(UrlError::Scheme));
        assert_eq!(Url::parse("https:///x"), Err(UrlError::NoHost));
        assert_eq!(Url::parse("https://:80/x"), Err(UrlError::NoHost));
        assert_eq!(Url::parse("https://me:secret@host/x"), Err(UrlError::Credentials));
        assert_eq!(Url::parse("https://host/a b"), Err(UrlError::Characters));
        assert_eq!(Url::parse("https://host/a\r\nHost: b"), Err(UrlError::Characters));
        assert_eq!(Url::parse(&format!("https://host/{}", "x".repeat(9000))), Err(UrlError::TooLong));
        assert_eq!(url("https://host/x@y#part").as_str(), "https://host/x@y");
    }

    #[test]
    fn origins_of_one_server_are_equal() {
        assert_eq!(url("https://Host/a").origin(), url("HTTPS://host:443?b").origin());
        assert_ne!(url("https://host/a").origin(), url("http://host/a").origin());
        assert_ne!(url("http://host:8080/a").origin(), url("http://host/a").origin());
        assert_eq!(url("http://[::1]/a").origin(), "http://[::1]:80");
        assert!(url("http://[::1]:8/a").is_loopback() && url("http://127.0.0.1").is_loopback());
        assert!(!url("http://127.example.org/").is_loopback() && !url("http://10.0.0.1/").is_loopback());
    }

    #[test]
    fn names_hide_the_query() {
        let signed = url("https://host/app.erofs?signature=abc");
        assert_eq!(format!("{signed} {signed:?}"), "https://host/app.erofs?... https://host/app.erofs?...");
        assert_eq!(signed.with_suffix(".verity").as_str(), "https://host/app.erofs.verity?signature=abc");
        assert_eq!(format!("{:?}", Secret("abc".into())), "(secret)");
    }

    #[test]
    fn references_of_redirects_are_resolved() {
        let base = url("http://host:1/a/b?q");
        for (reference, whole) in [
            ("https://other/x?y", "https://other/x?y"),
            ("//other/x", "http://other/x"),
            ("/x/y", "http://host:1/x/y"),
            ("?r", "http://host:1/a/b?r"),
            ("c", "http://host:1/a/c"),
        ] {
            assert_eq!(base.join(reference).unwrap().as_str(), whole);
        }
        assert_eq!(url("http://host").join("c").unwrap().as_str(), "http://host/c");
        assert!(base.join("file:///etc/passwd").is_err() && base.join("//me@other/x").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "(https?://)?[a-z:@/?#\\[\\]. é]{0,40}", reference in ".{0,30}") {
            if let Ok(url) = Url::parse(&text) {
                prop_assert!(url.origin().matches("://").count() >= 1 && !url.to_string().contains('#'));
                prop_assert_eq!(Url::parse(url.as_str()), Ok(url.clone()));
                prop_assert!(url.join(&reference).is_ok_and(|joined| Url::has_scheme(joined.as_str())) || url.join(&reference).is_err());
            }
        }
    }
}
