//! Sends one request for a range, and returns the body of an answer that fits it.
//!
//! Redirects are followed here and not by the HTTP library, because the headers of a store, such as `Authorization`, must
//! not leave the server that they are for, and because the place to which a redirect led is remembered: a signed URL is
//! used until the server refuses it or does not answer, and then asked for again.

use crate::access::{Access, Header, MAX_REFUSAL_BYTES, Reaction, Refusal, SignedRequest};
use crate::agents::{Agents, Route};
use crate::answer::{AttemptError, Head, Validator, Verdict, Version, Wanted, follow, judge, redirect};
use crate::environment::variable;
use crate::error::Change;
use crate::proxy::{self, Proxies, ProxyServer};
use crate::retry::Deadline;
use crate::{RemoteError, Secret, Url};
use pagefold_page::latency::LatencyCounters;
use pagefold_sys::resolver::unknown_host_text;
use pagefold_sys::timer;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Redirects that are followed for one request.
const MAX_REDIRECTS: usize = 5;
/// Requests that are made anew for one attempt, with other credentials or for another server.
const MAX_RENEWALS: usize = 2;

/// Counters of requests.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    /// The sum of the times of requests that succeeded, and each of them.
    pub(crate) request_ns: AtomicU64,
    pub(crate) latency: LatencyCounters,
}

impl Counters {
    /// Counts the time of a request that succeeded.
    pub(crate) fn record(&self, took: Duration) {
        self.request_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.latency.record(took);
    }
}

/// A client for one object.
pub(crate) struct Client {
    agents: Agents,
    access: Arc<dyn Access>,
    /// The place to which redirects led.
    redirected: Mutex<Option<Url>>,
    /// The pause that the server wants.
    quiet: Mutex<Option<Quiet>>,
    /// Whether the server has refused its own entity tag: it is compared with those of answers only.
    is_unconditional: AtomicBool,
    /// Whether the server has sent the entity tag of the version again after another one.
    has_several_tags: AtomicBool,
    pub(crate) counters: Counters,
}

/// A pause that a server wants.
struct Quiet {
    /// The time until which it gets no request: no longer than a read may take, because it may be back sooner than it said.
    until: Instant,
    /// The time that it named.
    wanted_until: Instant,
    /// Its answer.
    error: RemoteError,
}

/// The body of an answer that fits its request.
pub(crate) struct Body {
    pub(crate) version: Version,
    pub(crate) range: Range<u64>,
    reader: ureq::BodyReader<'static>,
}

impl Client {
    /// Makes a client. Sends nothing.
    pub(crate) fn new(access: Arc<dyn Access>, timeout: Duration) -> Result<Self, RemoteError> {
        let server = access.server();
        let agents = Agents::new(timeout, &server, server.is_https(), Proxies::from_environment(&variable))?;
        let (redirected, quiet, is_unconditional, has_several_tags, counters) = Default::default();
        Ok(Client { agents, access, redirected, quiet, is_unconditional, has_several_tags, counters })
    }

    pub(crate) fn access(&self) -> &dyn Access {
        &*self.access
    }

    /// Sends one request, and follows its redirects. If the store wants other credentials, gets them and sends another.
    /// `None`: the object has no bytes. While the server wants no requests, fails without one.
    pub(crate) fn get(&self, wanted: &Wanted<'_>, deadline: &Deadline) -> Result<Option<Body>, AttemptError> {
        self.check_quiet()?;
        let mut is_unconditional = self.is_unconditional.load(Ordering::Relaxed);
        let (mut renewals, mut changes, mut was_changed) = (0, 0, false);
        loop {
            match self.get_once(wanted, is_unconditional, deadline) {
                Ok(body) => {
                    self.is_unconditional.fetch_or(is_unconditional, Ordering::Relaxed);
                    self.has_several_tags.fetch_or(was_changed, Ordering::Relaxed);
                    return Ok(body);
                }
                Err(RequestError::Renew(_)) if renewals < MAX_RENEWALS => renewals += 1,
                Err(RequestError::Renew(error)) => return Err(AttemptError::Permanent(error)),
                Err(RequestError::Attempt(AttemptError::Permanent(RemoteError::Changed {
                    reason, ..
                }))) if changes < MAX_RENEWALS && reason.may_pass() => {
                    changes += 1;
                    // A server may not know its own tag: compressed files get another one on their way out.
                    is_unconditional |= reason == Change::Refused;
                    // Or several servers have this name, and the next one sends the right tag.
                    was_changed |= reason == Change::Etag;
                }
                Err(RequestError::Attempt(AttemptError::Permanent(RemoteError::Changed {
                    what,
                    reason,
                }))) => {
                    let has_several_tags = self.has_several_tags.load(Ordering::Relaxed);
                    let is_several = reason == Change::Etag && has_several_tags;
                    let reason = if is_several { Change::SeveralTags } else { reason };
                    return Err(AttemptError::Permanent(RemoteError::Changed { what, reason }));
                }
                Err(RequestError::Attempt(failure)) => return Err(failure),
            }
        }
    }

    /// Notes the pause that a server of the object asks for with its failure.
    fn note_pause(&self, failure: &AttemptError, deadline: &Deadline) {
        if let AttemptError::Transient { error, retry_after: Some(pause) } = failure {
            let now = Instant::now();
            let (until, wanted_until) = (now + (*pause).min(deadline.timeout), timer::deadline(now, *pause));
            *self.quiet() = Some(Quiet { until, wanted_until, error: error.clone() });
        }
    }

    /// Fails while the server wants no requests.
    fn check_quiet(&self) -> Result<(), AttemptError> {
        match &*self.quiet() {
            Some(Quiet { until, wanted_until, error }) if *until > Instant::now() => {
                let retry_after = Some(wanted_until.saturating_duration_since(Instant::now()));
                Err(AttemptError::Transient { error: error.clone(), retry_after })
            }
            _ => Ok(()),
        }
    }

    fn quiet(&self) -> std::sync::MutexGuard<'_, Option<Quiet>> {
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one request, and follows its redirects.
    fn get_once(
        &self,
        wanted: &Wanted<'_>,
        is_unconditional: bool,
        deadline: &Deadline,
    ) -> Result<Option<Body>, RequestError> {
        let known = self.redirected().clone();
        let was_redirected = known.is_some();
        // A signed URL elsewhere needs nothing of the store.
        let added = added_headers(wanted, is_unconditional);
        let signed = match &known {
            Some(url) if url.origin() != self.access.server().origin() => None,
            _ => Some(self.access.request(&added, deadline)?),
        };
        let first = signed.as_ref().map(|signed| signed.url.clone());
        let mut url = known.or_else(|| first.clone()).unwrap_or_else(|| self.access.server());
        for _ in 0..=MAX_REDIRECTS {
            let sent = self.send(&url, signed.as_ref(), &added, wanted, deadline);
            let (head, mut reader) = sent.inspect_err(|_| self.forget_redirect())?;
            // The server of the store may lead to another of its places, which takes the same credentials. If that was
            // remembered, a refusal may be meant for a signature in its URL, so the first place is asked again.
            if let Some(signed) = &signed
                && (url == signed.url || !was_redirected && url.origin() == signed.url.origin())
            {
                self.ask_store(signed, &head, &mut reader)?;
            }
            match judge(&head, wanted) {
                Ok(Verdict::Body { version, range }) => {
                    let is_elsewhere = first.as_ref() != Some(&url);
                    *self.redirected() = is_elsewhere.then_some(url);
                    return Ok(Some(Body { version, range, reader }));
                }
                Ok(Verdict::Empty) => return Ok(None),
                Ok(Verdict::Redirect(location)) => {
                    url = follow(&url, &location, self.access.server().is_https())?;
                }
                Err(failure) => {
                    self.forget_redirect();
                    self.note_pause(&failure, deadline);
                    let is_denied = matches!(
                        failure,
                        AttemptError::Permanent(RemoteError::Status { status: 400 | 401 | 403 | 404 | 410 })
                    );
                    let is_elsewhere = first.as_ref() != Some(&url);
                    // The signature of the URL that was remembered may have expired: ask for another one. One that has just
                    // come may have expired on its way, or in a cache.
                    return Err(match failure {
                        AttemptError::Permanent(error) if is_denied && was_redirected => {
                            AttemptError::transient(error).into()
                        }
                        AttemptError::Permanent(error) if is_denied && is_elsewhere => {
                            RequestError::Renew(error)
                        }
                        failure => failure.into(),
                    });
                }
            }
        }
        Err(redirect(format!("there are more than {MAX_REDIRECTS}")).into())
    }

    /// Lets the store handle an error status: renew the credentials, fail, or leave the answer to [`judge`].
    fn ask_store(
        &self,
        signed: &SignedRequest,
        head: &Head,
        reader: &mut ureq::BodyReader<'static>,
    ) -> Result<(), RequestError> {
        if !matches!(head.status, 300..=407 | 409..=411) {
            return Ok(());
        }
        let mut body = Vec::new();
        // The part that came before an error may say enough.
        let _ = reader.take(MAX_REFUSAL_BYTES).read_to_end(&mut body);
        let (challenge, bucket_region) = (head.challenge(), head.get("x-amz-bucket-region"));
        let refusal = Refusal {
            status: head.status,
            challenge: challenge.as_deref(),
            date: head.date(),
            bucket_region: bucket_region.as_deref(),
            body: &String::from_utf8_lossy(&body),
        };
        match self.access.refused(signed, &refusal) {
            Reaction::Default => Ok(()),
            Reaction::Renew(error) => Err(RequestError::Renew(error)),
            Reaction::Fail(error) => Err(AttemptError::Permanent(error).into()),
        }
    }

    /// Waits before a further attempt.
    pub(crate) fn wait(&self, pause: Duration) {
        self.counters.retries.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(pause);
    }

    fn redirected(&self) -> std::sync::MutexGuard<'_, Option<Url>> {
        self.redirected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_redirect(&self) {
        *self.redirected() = None;
    }

    /// Sends one request to this URL.
    fn send(
        &self,
        url: &Url,
        signed: Option<&SignedRequest>,
        added: &[Header],
        wanted: &Wanted<'_>,
        deadline: &Deadline,
    ) -> Result<(Head, ureq::BodyReader<'static>), AttemptError> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let Route { agent, proxy } = self.agents.of(url).map_err(AttemptError::Permanent)?;
        let mut request = agent.get(url.as_str()).header("Accept-Encoding", "identity");
        for (name, value) in added {
            request = request.header(*name, value);
        }
        for (name, Secret(value)) in signed.iter().flat_map(|signed| &signed.headers) {
            if signed.is_some_and(|signed| url.origin() == signed.url.origin()) {
                request = request.header(*name, value);
            }
        }
        let remaining = deadline.remaining();
        // The agent's own limit is that of a whole read. Requests with other limits than the agent do not share its
        // configuration of TLS, which takes some milliseconds to make.
        let answered = match remaining + Duration::from_millis(100) >= deadline.timeout {
            // The body has the time that it needs; silence ends it.
            _ if wanted.is_whole => request.config().timeout_global(None).build().call(),
            true => request.call(),
            false => request.config().timeout_global(Some(remaining)).build().call(),
        };
        let (head, body) = answered.map_err(|e| failure(e, wanted.version.is_none(), proxy))?.into_parts();
        check_proxy(head.status.as_u16(), url, proxy)?;
        Ok((Head { status: head.status.as_u16(), headers: head.headers }, body.into_reader()))
    }

    /// Passes the whole body to `take`.
    pub(crate) fn read_whole<T>(&self, mut body: Body, take: impl FnOnce(&mut dyn Read) -> T) -> T {
        let mut counted = CountingReader { inner: &mut body.reader, bytes: &self.counters.received_bytes };
        take(&mut counted)
    }

    /// Fills the buffers, one after the other, with a whole body. A shorter or a longer body fails.
    pub(crate) fn read_body(&self, mut body: Body, buffers: &mut [Vec<u8>]) -> Result<(), AttemptError> {
        for buffer in buffers.iter_mut() {
            body.reader.read_exact(buffer).map_err(|e| body_failure(&e))?;
            self.counters.received_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        }
        let mut more = [0];
        // An error after the last byte does no harm.
        match body.reader.read(&mut more) {
            Ok(1..) => Err(AttemptError::refused("its body is longer than its range")),
            Ok(0) | Err(_) => Ok(()),
        }
    }
}

/// Counts the bytes that are read.
struct CountingReader<'a> {
    inner: &'a mut ureq::BodyReader<'static>,
    bytes: &'a AtomicU64,
}

impl Read for CountingReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buf)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// The headers that ask for a range of a version; `is_unconditional`: without naming it.
fn added_headers(wanted: &Wanted<'_>, is_unconditional: bool) -> Vec<Header> {
    let Range { start, end } = wanted.range;
    let range = (!wanted.is_whole).then(|| ("range", format!("bytes={start}-{}", end.saturating_sub(1))));
    let condition = match wanted.version.filter(|_| !is_unconditional).map(|version| &version.validator) {
        Some(Validator::Etag(etag)) => Some(("if-match", etag.clone())),
        Some(Validator::LastModified(time)) => Some(("if-unmodified-since", time.clone())),
        Some(Validator::None) | None => None,
    };
    range.into_iter().chain(condition).collect()
}

/// The failure of one request.
enum RequestError {
    /// The store wants another request. The error is that of the read if it gets no other one.
    Renew(RemoteError),
    Attempt(AttemptError),
}

impl From<AttemptError> for RequestError {
    fn from(error: AttemptError) -> Self {
        RequestError::Attempt(error)
    }
}

/// Fails if a proxy that forwards requests answered one itself, with a status that mostly proxies send.
pub(crate) fn check_proxy(status: u16, url: &Url, proxy: Option<&ProxyServer>) -> Result<(), AttemptError> {
    match proxy.filter(|proxy| !url.is_https() && proxy.forwards()) {
        Some(proxy) if matches!(status, 407 | 502 | 504) => Err(proxy::refusal(status, &proxy.name)),
        _ => Ok(()),
    }
}

/// The failure of a request that got no answer, through `proxy` if there is one. A host that was never found probably does
/// not exist.
pub(crate) fn failure(error: ureq::Error, is_first: bool, proxy: Option<&ProxyServer>) -> AttemptError {
    let failure = match (error, proxy) {
        (ureq::Error::ConnectProxyFailed(reason), _) => {
            return proxy::failure(&reason, proxy.map_or("of the environment", |proxy| &proxy.name));
        }
        (error, _) => direct_failure(error, is_first),
    };
    match proxy {
        Some(proxy) => failure.map_connection(|what| format!("through the proxy {}: {what}", proxy.name)),
        None => failure,
    }
}

fn direct_failure(error: ureq::Error, is_first: bool) -> AttemptError {
    let what = error.to_string();
    match error {
        ureq::Error::HostNotFound if is_first => AttemptError::Permanent(RemoteError::Connection { what }),
        ureq::Error::Io(e) if is_first && is_unknown_host(&e) => {
            AttemptError::Permanent(RemoteError::Connection { what: "there is no such host".to_string() })
        }
        ureq::Error::Io(e) if is_tls(&e) => AttemptError::Permanent(tls_failure(&e)),
        ureq::Error::Io(_)
        | ureq::Error::Timeout(_)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::Protocol(_) => AttemptError::transient(RemoteError::Connection { what }),
        ureq::Error::LargeResponseHeader(..) => AttemptError::refused("its headers are too long"),
        _ => AttemptError::Permanent(RemoteError::Connection { what }),
    }
}

/// Whether the resolver knows no such name, rather than being out of reach. The standard library reports the difference
/// in words of the C library only.
fn is_unknown_host(error: &std::io::Error) -> bool {
    error.raw_os_error().is_none() && error.to_string().ends_with(&unknown_host_text())
}

/// The failure for which [`is_tls`], with what can be done about certificates that are made by hand.
fn tls_failure(error: &std::io::Error) -> RemoteError {
    use rustls::CertificateError::{NotValidForName, NotValidForNameContext, UnknownIssuer};
    let advice = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            return RemoteError::NotTls;
        }
        Some(rustls::Error::InvalidCertificate(UnknownIssuer)) => {
            "; if its certificate is made by hand, let SSL_CERT_FILE name a file with that of its authority"
        }
        Some(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
            "; the certificate must have the host as a subjectAltName: a common name does not count"
        }
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other)))
            if format!("{other:?}").contains("CaUsedAsEndEntity") =>
        {
            let what = "the server's certificate is that of an authority, as 'openssl req -x509' makes it: make one that is none, \
                        by 'openssl req -x509 -addext basicConstraints=critical,CA:FALSE -addext \
                        subjectAltName=DNS:HOST ...', and trust it by SSL_CERT_FILE";
            return RemoteError::Connection { what: what.to_string() };
        }
        _ => "",
    };
    RemoteError::Connection { what: format!("{error}{advice}") }
}

/// Whether the other side does not speak TLS, or has no valid certificate.
fn is_tls(error: &std::io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

/// The failure of a body that broke off.
fn body_failure(error: &std::io::Error) -> AttemptError {
    let what = match error.kind() {
        ErrorKind::UnexpectedEof => "the body of the answer was cut off".to_string(),
        _ => format!("the body of the answer: {error}"),
    };
    AttemptError::transient(RemoteError::Connection { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_does_not_exist_is_reported_at_once_and_only_when_an_object_is_opened() {
        let lookup =
            |what: &str| std::io::Error::other(format!("failed to lookup address information: {what}"));
        let unknown = || ureq::Error::Io(lookup(&unknown_host_text()));
        let away = || ureq::Error::Io(lookup("Temporary failure in name resolution"));
        assert!(matches!(failure(unknown(), true, None), AttemptError::Permanent(_)));
        assert!(matches!(failure(unknown(), false, None), AttemptError::Transient { .. }));
        assert!(matches!(failure(away(), true, None), AttemptError::Transient { .. }));
        let untrusted = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let untrusted = std::io::Error::new(ErrorKind::InvalidData, untrusted);
        assert!(matches!(failure(ureq::Error::Io(untrusted), false, None), AttemptError::Permanent(_)));
    }
}
