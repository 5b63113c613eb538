//! TLS with client certificates, by the `rustls` library.
//!
//! A [`TlsConfig`] always requires a certificate of every client, because an NBD export has no other authentication
//! over TCP. Every client with a certificate of the given CA is admitted, so the CA should be one that was made for
//! this purpose. The ciphers and versions are rustls's defaults: TLS 1.3 and 1.2 with forward secrecy.
//!
//! [`TlsTransport`] wraps another transport and runs on the thread of its connection.

use super::NbdError;
use super::transport::{Awaited, Transport};
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

/// Limit of the replies that rustls buffers, once as plaintext and once encrypted, bytes.
const SESSION_BUFFER_LEN: usize = 1 << 20;

/// A server's certificate and key, and the CA whose clients are admitted.
#[derive(Clone)]
pub struct TlsConfig {
    config: Arc<ServerConfig>,
}

impl TlsConfig {
    /// Reads PEM files: `ca` has the certificates that sign clients' certificates, `cert` the server's certificate
    /// chain, `key` its private key.
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

/// Reads the server's certificates and its private key, and checks that they match.
fn read_key_pair(provider: &CryptoProvider, cert: &Path, key: &Path) -> Result<CertifiedKey, NbdError> {
    let chain = read_certificates(cert)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| {
        let start = std::fs::read(key).unwrap_or_default();
        file_error(key, &key_advice(&start).map_or_else(|| e.to_string(), str::to_string))
    })?;
    let secret = provider.key_provider.load_private_key(secret).map_err(|e| {
        let usable = "use a key of ECDSA (P-256, P-384), Ed25519, or RSA with 2048, 2560, 3072, 3584 or 4096 bits; 'openssl \
                      genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256' makes one";
        file_error(key, &format!("{e}; {usable}"))
    })?;
    let own = CertifiedKey::new(chain, secret);
    match own.keys_match() {
        // A key whose public half the library cannot compute cannot be compared: accept it.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(own),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(file_error(key, &format!("it is not the key of the certificate in {}", cert.display())))
        }
        Err(e) => Err(file_error(cert, &e)),
    }
}

/// The advice for a file that has no private key in PEM; `None` if its contents do not say.
fn key_advice(contents: &[u8]) -> Option<&'static str> {
    // A sequence of DER, with its length in the next bytes.
    let is_der = contents.starts_with(&[0x30]) && contents.get(1).is_some_and(|length| length & 0x80 != 0);
    let has = |text: &str| contents.windows(text.len()).any(|part| part == text.as_bytes());
    match () {
        () if has("ENCRYPTED") => Some(
            "the key is encrypted, and nobody can be asked for its password: 'openssl pkey -in KEY -out PLAIN' decrypts it",
        ),
        () if is_der => {
            Some("the key is in DER: 'openssl pkey -inform DER -in KEY -out PEM' writes it in PEM")
        }
        () if has("BEGIN CERTIFICATE") => Some("it has a certificate and no private key"),
        () => None,
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, NbdError> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    let found = read().map_err(|e| file_error(path, &e))?;
    if found.is_empty() {
        return Err(file_error(path, &"the file contains no certificate"));
    }
    Ok(found)
}

fn file_error(path: &Path, why: &dyn std::fmt::Display) -> NbdError {
    NbdError::TlsFile { path: path.to_path_buf(), why: why.to_string() }
}

/// A TLS connection over another transport, as the server.
pub struct TlsTransport<T> {
    inner: T,
    session: ServerConnection,
    /// The client has closed the stream below TLS.
    ended: bool,
}

impl<T: Transport> TlsTransport<T> {
    /// Does the TLS handshake. Refuses a client without a valid certificate. Fails with `TimedOut` at `deadline`.
    pub fn accept(inner: T, config: &TlsConfig, deadline: Instant) -> io::Result<Self> {
        let mut session = ServerConnection::new(config.config.clone()).map_err(io::Error::other)?;
        session.set_buffer_limit(Some(SESSION_BUFFER_LEN));
        let mut tls = TlsTransport { inner, session, ended: false };
        while tls.session.is_handshaking() || tls.session.wants_write() {
            tls.send_encrypted()?;
            let (readable, writable) = (tls.session.wants_read(), tls.session.wants_write());
            if !tls.session.is_handshaking() && !writable {
                break;
            }
            tls.inner.wait(Awaited { readable, writable, other: None }, Some(deadline))?;
            if tls.session.is_handshaking() {
                ignore_would_block(tls.receive_encrypted(false))?;
                if tls.ended {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        Ok(tls)
    }

    /// Sends as much of the encrypted output as the inner transport takes without waiting.
    fn send_encrypted(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            let mut writer = StdIo(&mut self.inner, false);
            match self.session.write_tls(&mut writer) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Receives encrypted input and decrypts it. Sends an alert if it is invalid.
    fn receive_encrypted(&mut self, wait: bool) -> io::Result<()> {
        let mut reader = StdIo(&mut self.inner, wait);
        if self.session.read_tls(&mut reader)? == 0 {
            self.ended = true;
        }
        if let Err(e) = self.session.process_new_packets() {
            let _ = self.send_encrypted();
            return Err(io::Error::new(io::ErrorKind::InvalidData, e));
        }
        Ok(())
    }

    /// Reads bytes that are already decrypted; `None` if there are none yet.
    fn read_decrypted(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
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
            if let Some(n) = self.read_decrypted(buf)? {
                return Ok(n);
            }
            if self.ended {
                return Ok(0);
            }
            self.send_encrypted()?;
            if wait && self.session.wants_write() {
                self.inner.wait(Awaited { readable: true, writable: true, other: None }, None)?;
                ignore_would_block(self.receive_encrypted(false))?;
            } else {
                self.receive_encrypted(wait)?;
            }
        }
    }

    fn send(&mut self, data: &[u8]) -> io::Result<usize> {
        self.send_encrypted()?;
        let n = self.session.writer().write(data)?;
        self.send_encrypted()?;
        if n == 0 && !data.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(n)
    }

    fn wait(&mut self, awaited: Awaited<'_>, deadline: Option<Instant>) -> io::Result<()> {
        let pending = self.session.process_new_packets().map_err(io::Error::other)?;
        let has_input = awaited.readable && (self.ended || pending.plaintext_bytes_to_read() > 0);
        // Writable means that rustls has sent its encrypted output: before that it may refuse more plaintext.
        let unsent = self.session.wants_write();
        if has_input || (awaited.writable && !unsent) {
            return Ok(());
        }
        self.inner.wait(Awaited { writable: unsent, ..awaited }, deadline)
    }

    fn finish(&mut self, deadline: Instant) {
        self.session.send_close_notify();
        while self.send_encrypted().is_ok() && self.session.wants_write() {
            if self.inner.wait(Awaited::WRITABLE, Some(deadline)).is_err() {
                break;
            }
        }
        self.inner.finish(deadline);
    }
}

/// Turns `WouldBlock` into success.
fn ignore_would_block(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
        other => other,
    }
}

/// Adapts a transport to the `Read` and `Write` that rustls needs. The flag says whether `read` waits for input.
struct StdIo<'t, T>(&'t mut T, bool);

impl<T: Transport> Read for StdIo<'_, T> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.recv(buf, self.1)
    }
}

impl<T: Transport> Write for StdIo<'_, T> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.send(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_a_key_in_pem_are_told_apart() {
        let advice = |contents: &[u8]| key_advice(contents).unwrap_or("nothing");
        assert!(advice(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n").contains("decrypts it"));
        assert!(advice(b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n").contains("decrypts it"));
        assert!(advice(&[0x30, 0x82, 4, 0xa4, 2, 1, 0]).contains("-inform DER"));
        assert!(advice(b"-----BEGIN CERTIFICATE-----\n").contains("no private key"));
        for other in [&b""[..], b"0", b"0123", b"-----BEGIN PRIVATE KEY-----\n"] {
            assert_eq!(key_advice(other), None);
        }
    }
}
