//! The HTTP agents of a client, and the certificates that all agents of the process trust.
//!
//! A redirect leads from `http://` to `https://`, and so may a proxy, the server of tokens or the store of a registry's
//! blobs. So every client can ask both schemes. Loading the certificates of the system takes some milliseconds, and fails
//! on machines that have none, so this is done when the first connection with TLS is wanted.

use crate::proxy::{ForwardConnector, Proxies, ProxyServer};
use crate::{RemoteError, Url};
use rustls::crypto::ring;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::unversioned::resolver::DefaultResolver;

/// Idle connections that an agent keeps.
const MAX_IDLE: usize = 16;
/// The name of the program in requests.
const USER_AGENT: &str = concat!("pagefold/", env!("CARGO_PKG_VERSION"));

/// The agents of one client. They keep connections, and do not follow redirects.
pub(crate) struct Agents {
    /// The longest time of a call.
    timeout: Duration,
    https_only: bool,
    proxies: Proxies,
    /// Without a proxy, for URLs of `http` and of `https`.
    direct: [OnceLock<ureq::Agent>; 2],
    /// Through the proxy of the scheme.
    by_proxy: [OnceLock<ureq::Agent>; 2],
}

/// How a request is sent.
pub(crate) struct Route<'a> {
    pub(crate) agent: &'a ureq::Agent,
    /// The proxy that it goes through.
    pub(crate) proxy: Option<&'a ProxyServer>,
}

impl Agents {
    /// The agent for this server is made now, so that what is missing is an error of opening. `https_only`: no other scheme
    /// is asked, neither by a redirect.
    pub(crate) fn new(
        timeout: Duration,
        server: &Url,
        https_only: bool,
        proxies: Proxies,
    ) -> Result<Self, RemoteError> {
        let (direct, by_proxy) = Default::default();
        let agents = Agents { timeout, https_only, proxies, direct, by_proxy };
        agents.of(server)?;
        Ok(agents)
    }

    /// The agent for a URL.
    pub(crate) fn of(&self, url: &Url) -> Result<Route<'_>, RemoteError> {
        let is_https = url.is_https();
        if self.https_only && !is_https {
            return Err(RemoteError::Redirect { what: format!("'{url}' is not asked by https://") });
        }
        let proxy = self.proxies.of(url)?;
        let kept = match proxy {
            None => &self.direct[usize::from(is_https)],
            Some(_) => &self.by_proxy[usize::from(is_https)],
        };
        let agent = match kept.get() {
            Some(agent) => agent,
            None => {
                let made = self.make(is_https, proxy)?;
                kept.get_or_init(|| made)
            }
        };
        Ok(Route { agent, proxy })
    }

    fn make(&self, is_https: bool, proxy: Option<&ProxyServer>) -> Result<ureq::Agent, RemoteError> {
        // A server that says nothing for a third of the time is tried again within it.
        let stall = Some(self.timeout / 3);
        let proxy_is_https = proxy.is_some_and(ProxyServer::is_https);
        let config = |proxy: Option<ureq::Proxy>| {
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
            match is_https || proxy_is_https {
                true => tls().map(|tls| config.tls_config(tls).build()),
                false => Ok(config.build()),
            }
        };
        let own = config(proxy.map(|server| server.proxy.clone()))?;
        Ok(match proxy.filter(|proxy| !is_https && proxy.forwards()) {
            None => own.new_agent(),
            Some(server) => {
                let connector = ForwardConnector::new(&server.proxy, config(None)?);
                ureq::Agent::with_parts(own, connector, DefaultResolver::default())
            }
        })
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
