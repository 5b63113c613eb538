//! TLS with client certificates, by the `rustls` library.
//!
//! There is one way to make a configuration, and it requires a certificate of every
//! client, because an NBD export has no other notion of who may use it. Whoever
//! holds a certificate of the given CA is admitted: the CA should be one made for this
//! purpose. Nothing here chooses ciphers or versions; rustls's defaults
//! are TLS 1.3 and 1.2 with forward secrecy.

use super::NbdError;
use super::transport::Transport;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The most that rustls holds of our replies, in either form, bytes.
const HELD_LEN: usize = 1 << 20;

/// A server's certificate and key, and the CA whose clients are admitted.
#[derive(Clone)]
pub struct TlsConfig {
    config: Arc<ServerConfig>,
}

impl TlsConfig {
    /// Reads PEM files: `ca` with the certificates that sign clients', `cert` with the server's
    /// chain, `key` with its private key.
    pub fn from_pem_files(ca: &Path, cert: &Path, key: &Path) -> Result<Self, NbdError> {
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(ca)? {
            roots.add(certificate).map_err(|e| file_error(ca, &e))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let own = read_key_pair(&provider, cert, key)?;
        let failed = |e: &dyn std::fmt::Display| NbdError::Tls(e.to_string());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|e| file_error(ca, &e))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| failed(&e))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        Ok(TlsConfig { config: Arc::new(config) })
    }
}

/// The server's certificates and its key, which fit each other.
fn read_key_pair(provider: &CryptoProvider, cert: &Path, key: &Path) -> Result<CertifiedKey, NbdError> {
    let chain = read_certificates(cert)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| file_error(key, &e))?;
    let secret = provider.key_provider.load_private_key(secret).map_err(|e| {
        let usable = "use a key of RSA with 2048 to 4096 bits, ECDSA (P-256, P-384) or Ed25519";
        file_error(key, &format!("{e}; {usable}"))
    })?;
    let own = CertifiedKey::new(chain, secret);
    match own.keys_match() {
        // A key that does not tell its public half cannot be compared.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(own),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(file_error(key, &format!("it is not the key of the certificate in {}", cert.display())))
        }
        Err(e) => Err(file_error(cert, &e)),
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, NbdError> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    let found = read().map_err(|e| file_error(path, &e))?;
    if found.is_empty() {
        return Err(file_error(path, &"no certificate in it"));
    }
    Ok(found)
}

fn file_error(path: &Path, why: &dyn std::fmt::Display) -> NbdError {
    NbdError::TlsFile { path: path.to_path_buf(), why: why.to_string() }
}

/// A transport inside another one.
pub struct TlsTransport<T> {
    inner: T,
    session: ServerConnection,
    /// The client ended the stream below TLS.
    ended: bool,
}

impl<T: Transport> TlsTransport<T> {
    /// Does the TLS handshake as the server; a client without a good certificate is refused here.
    pub fn accept(inner: T, config: &TlsConfig, deadline: Instant) -> io::Result<Self> {
        let mut session = ServerConnection::new(config.config.clone()).map_err(io::Error::other)?;
        session.set_buffer_limit(Some(HELD_LEN));
        let mut tls = TlsTransport { inner, session, ended: false };
        while tls.session.is_handshaking() || tls.session.wants_write() {
            tls.push()?;
            let (readable, writable) = (tls.session.wants_read(), tls.session.wants_write());
            if !tls.session.is_handshaking() && !writable {
                break;
            }
            tls.inner.wait(readable, writable, Some(deadline))?;
            if tls.session.is_handshaking() {
                unless_blocked(tls.pull(false))?;
                if tls.ended {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        Ok(tls)
    }

    /// Gives the inner transport what it takes of the encrypted output.
    fn push(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            let mut writer = Raw(&mut self.inner, false);
            match self.session.write_tls(&mut writer) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Takes encrypted input and decrypts it; an alert is sent for what is not TLS.
    fn pull(&mut self, wait: bool) -> io::Result<()> {
        let mut reader = Raw(&mut self.inner, wait);
        if self.session.read_tls(&mut reader)? == 0 {
            self.ended = true;
        }
        if let Err(e) = self.session.process_new_packets() {
            let _ = self.push();
            return Err(io::Error::new(io::ErrorKind::InvalidData, e));
        }
        Ok(())
    }

    /// Decrypted bytes that are there already; `None` if there are none yet.
    fn take(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match self.session.reader().read(buf) {
            Ok(n) => Ok(Some(n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl<T: Transport> Transport for TlsTransport<T> {
    fn recv(&mut self, buf: &mut [u8], wait: bool) -> io::Result<usize> {
        loop {
            if let Some(n) = self.take(buf)? {
                return Ok(n);
            }
            if self.ended {
                return Ok(0);
            }
            self.push()?;
            if wait && self.session.wants_write() {
                self.inner.wait(true, true, None)?;
                unless_blocked(self.pull(false))?;
            } else {
                self.pull(wait)?;
            }
        }
    }

    fn send(&mut self, data: &[u8]) -> io::Result<usize> {
        self.push()?;
        let n = self.session.writer().write(data)?;
        self.push()?;
        if n == 0 && !data.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(n)
    }

    fn wait(&mut self, readable: bool, writable: bool, deadline: Option<Instant>) -> io::Result<()> {
        let pending = self.session.process_new_packets().map_err(io::Error::other)?;
        let at_hand = readable && (self.ended || pending.plaintext_bytes_to_read() > 0);
        // What rustls holds must have left before it takes more; if it holds nothing, it takes some.
        let held = self.session.wants_write();
        if at_hand || (writable && !held) {
            return Ok(());
        }
        self.inner.wait(readable, held, deadline)
    }

    fn finish(&mut self, deadline: Instant) {
        self.session.send_close_notify();
        while self.push().is_ok() && self.session.wants_write() {
            if self.inner.wait(false, true, Some(deadline)).is_err() {
                break;
            }
        }
        self.inner.finish(deadline);
    }
}

fn unless_blocked(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
        other => other,
    }
}

/// A transport as the standard traits that rustls wants; whether to wait for input is said apart.
struct Raw<'t, T>(&'t mut T, bool);

impl<T: Transport> Read for Raw<'_, T> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.recv(buf, self.1)
    }
}

impl<T: Transport> Write for Raw<'_, T> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.send(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
