//! The HTTP agents of a client, and the certificates that all agents of the process trust.
//!
//! A redirect leads from `http://` to `https://`, and so may a proxy, the server of tokens or the store of a registry's
//! blobs. So every client can ask both schemes. Loading the certificates of the system takes some milliseconds, and fails
//! on machines that have none, so this is done when the first connection with TLS is wanted.

use crate::{RemoteError, Url, proxy};
use rustls::crypto::ring;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

/// Idle connections that an agent keeps.
const MAX_IDLE: usize = 16;
/// The name of the program in requests.
const USER_AGENT: &str = concat!("pagefold/", env!("CARGO_PKG_VERSION"));

/// The agents of one client. They keep connections, and do not follow redirects.
pub(crate) struct Agents {
    /// The longest time of a call.
    timeout: Duration,
    https_only: bool,
    /// Whether proxies of the environment are used.
    with_proxy: bool,
    /// For URLs of `http`.
    plain: OnceLock<ureq::Agent>,
    /// For URLs of `https`.
    secure: OnceLock<ureq::Agent>,
}

impl Agents {
    /// The agent of one scheme is made now, so that what is missing is an error of opening. `https_only`: no other scheme is
    /// asked, neither by a redirect.
    pub(crate) fn new(timeout: Duration, https_only: bool, with_proxy: bool) -> Result<Self, RemoteError> {
        if with_proxy {
            proxy::check(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
        }
        let (plain, secure) = Default::default();
        let agents = Agents { timeout, https_only, with_proxy, plain, secure };
        agents.of_scheme(https_only)?;
        Ok(agents)
    }

    /// The agent for a URL.
    pub(crate) fn of(&self, url: &Url) -> Result<&ureq::Agent, RemoteError> {
        // That of `https` refuses other schemes if it must.
        self.of_scheme(url.is_https() || self.https_only)
    }

    fn of_scheme(&self, is_https: bool) -> Result<&ureq::Agent, RemoteError> {
        let agent = if is_https { &self.secure } else { &self.plain };
        if let Some(agent) = agent.get() {
            return Ok(agent);
        }
        let made = self.make(is_https)?;
        Ok(agent.get_or_init(|| made))
    }

    fn make(&self, is_https: bool) -> Result<ureq::Agent, RemoteError> {
        let proxy = ureq::Proxy::try_from_env().filter(|_| self.with_proxy);
        let is_proxy_https =
            proxy.as_ref().is_some_and(|proxy| proxy.protocol() == ureq::ProxyProtocol::Https);
        // A server that says nothing for a third of the time is tried again within it.
        let stall = Some(self.timeout / 3);
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .https_only(self.https_only)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(USER_AGENT)
            .max_idle_connections(MAX_IDLE)
            .max_idle_connections_per_host(MAX_IDLE)
            .timeout_global(Some(self.timeout))
            .timeout_resolve(stall)
            .timeout_connect(stall)
            .timeout_recv_response(stall)
            .timeout_per_read(stall)
            .proxy(proxy);
        let config = if is_https || is_proxy_https { config.tls_config(tls()?) } else { config };
        Ok(config.build().new_agent())
    }
}

/// The configuration of TLS of all agents: the certificates of the system, or those that SSL_CERT_FILE and SSL_CERT_DIR
/// name. It is made once; a failure is not kept.
fn tls() -> Result<TlsConfig, RemoteError> {
    static CONFIG: OnceLock<TlsConfig> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let loaded = load()?;
    Ok(CONFIG.get_or_init(|| loaded).clone())
}

fn load() -> Result<TlsConfig, RemoteError> {
    let loaded = rustls_native_certs::load_native_certs();
    if loaded.certs.is_empty() {
        let reasons: Vec<_> = loaded.errors.iter().map(ToString::to_string).collect();
        let what = match reasons.is_empty() {
            true => "there are no certificates of authorities; install ca-certificates, or set SSL_CERT_FILE"
                .to_string(),
            false => format!("no certificates of authorities can be read: {}", reasons.join("; ")),
        };
        return Err(RemoteError::SetUp { what });
    }
    let roots = loaded.certs.iter().map(|der| Certificate::from_der(der).to_owned());
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::from(roots.collect::<Vec<_>>()))
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .build())
}
