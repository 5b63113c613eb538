//! Tests of NBD over TLS: which clients are admitted, which options are refused before TLS, and that data is unchanged.

use crate::support::nbd::*;
use pagefold_block::RamDevice;
use pagefold_block::nbd::proto::{cmd, opt, rep};
use pagefold_block::nbd::{Export, Limits, NbdError, Server, TlsConfig, uri};
use pagefold_testkit::noise;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A folder with a CA, a server's and a client's certificate, named as libnbd and QEMU expect.
pub(crate) struct Pki {
    dir: tempfile::TempDir,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "test CA");
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(dir.path().join("ca-cert.pem"), ca.pem()).unwrap();
        for side in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let names = vec!["localhost".to_string(), "127.0.0.1".to_string()];
            let mut params = CertificateParams::new(names).unwrap();
            params.distinguished_name.push(rcgen::DnType::CommonName, side);
            let certificate = params.signed_by(&key, &ca).unwrap();
            std::fs::write(dir.path().join(format!("{side}-cert.pem")), certificate.pem()).unwrap();
            std::fs::write(dir.path().join(format!("{side}-key.pem")), key.serialize_pem()).unwrap();
        }
        Pki { dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn server_config(&self) -> TlsConfig {
        let [ca, cert, key] = ["ca-cert.pem", "server-cert.pem", "server-key.pem"].map(|f| self.file(f));
        TlsConfig::from_pem_files(&ca, &cert, &key).unwrap()
    }

    /// A client's configuration, with the client certificate of `identity` if that is not `None`.
    pub(crate) fn client_config(&self, identity: Option<&Pki>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.file("ca-cert.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match identity {
            None => builder.with_no_client_auth(),
            Some(pki) => {
                let chain = vec![CertificateDer::from_pem_file(pki.file("client-cert.pem")).unwrap()];
                let key = PrivateKeyDer::from_pem_file(pki.file("client-key.pem")).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }
}

fn serve(pki: &Pki) -> (Server, SocketAddr) {
    let limits = Limits { handshake_time: Duration::from_secs(10), ..Limits::default() };
    let server = Server::new(Export::new(NAME, "", Arc::new(RamDevice::new(64 << 20))).unwrap(), limits);
    // With TLS, the server may listen on any address.
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    server.serve_tcp(listener, Some(pki.server_config())).unwrap();
    (server, SocketAddr::from(([127, 0, 0, 1], port)))
}

pub(crate) fn plain(addr: SocketAddr) -> Client<TcpStream> {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut client = Client::new(stream);
    client.greet(3);
    client
}

pub(crate) type TlsClient = Client<StreamOwned<ClientConnection, TcpStream>>;

pub(crate) fn tls(addr: SocketAddr, config: Arc<ClientConfig>) -> TlsClient {
    let mut client = plain(addr);
    assert_eq!(client.final_reply(opt::STARTTLS, b""), rep::ACK);
    let name = ServerName::try_from("localhost").unwrap();
    Client::new(StreamOwned::new(ClientConnection::new(config, name).unwrap(), client.stream))
}

#[test]
fn a_client_with_a_certificate_is_served() {
    let pki = Pki::new();
    let (server, addr) = serve(&pki);
    for structured in [false, true] {
        let mut c = tls(addr, pki.client_config(Some(&pki)));
        assert_eq!(c.final_reply(opt::STARTTLS, b""), rep::ERR_INVALID);
        c.open(structured);
        let data = noise(1, 5 << 20);
        c.write(100, &data);
        assert!(c.read(100, 5 << 20) == data);
        assert_eq!(c.read(0, 32 << 20).len(), 32 << 20);
        assert_eq!(c.call(0, cmd::WRITE_ZEROES, 0, 32 << 20, b""), 0);
        assert_eq!(c.call(0, 99, 0, 0, b""), 22);
        c.send(0, cmd::DISC, 0, 0, b"");
        assert!(c.is_disconnected(), "the server ends the TLS stream properly");
    }
    assert_eq!(server.counters().failed, 0);
}

#[test]
fn a_client_that_ends_its_stream_gets_all_replies() {
    const LEN: u32 = 1 << 20;
    let pki = Pki::new();
    let (server, addr) = serve(&pki);
    let mut c = tls(addr, pki.client_config(Some(&pki)));
    c.open(false);
    let data = noise(2, LEN as usize);
    c.write(0, &data);
    let cookies: Vec<u64> = (0..24).map(|_| c.send(0, cmd::READ, 0, LEN, b"")).collect();
    c.stream.conn.send_close_notify();
    c.stream.flush().unwrap();
    c.stream.sock.shutdown(std::net::Shutdown::Write).unwrap();
    for cookie in cookies {
        assert!(c.read_reply(cookie, 0, 0, LEN).unwrap() == data);
    }
    assert!(c.is_disconnected());
    server.stop();
    assert_eq!(server.counters().failed, 0);
}

#[test]
fn a_client_without_a_valid_certificate_is_refused() {
    let pki = Pki::new();
    let (server, addr) = serve(&pki);
    for identity in [None, Some(&Pki::new())] {
        let mut c = tls(addr, pki.client_config(identity));
        // With TLS 1.3 the client learns of the refusal only when it reads after its handshake.
        let _ = c.stream.write_all(&option_bytes(opt::LIST, b""));
        let mut answer = Vec::new();
        assert!(c.stream.read_to_end(&mut answer).is_err());
        assert!(answer.is_empty());
    }
    assert_eq!(server.connections(), 0);
    server.stop();
    assert_eq!(server.counters().failed, 2);
}

#[test]
fn options_before_tls_are_refused() {
    let pki = Pki::new();
    let (_server, addr) = serve(&pki);
    let mut c = plain(addr);
    for option in [opt::LIST, opt::INFO, opt::GO, opt::STRUCTURED_REPLY, opt::SET_META_CONTEXT, 1234] {
        let replies = c.option(option, &info_data(NAME, &[]));
        assert_eq!((replies.len(), replies[0].0), (1, rep::ERR_TLS_REQD));
    }
    assert_eq!(c.final_reply(opt::STARTTLS, b"x"), rep::ERR_INVALID);
    assert_eq!(c.final_reply(opt::ABORT, b""), rep::ACK);
    assert!(c.is_disconnected());
    let mut c = plain(addr);
    c.send_option(opt::EXPORT_NAME, NAME.as_bytes());
    assert!(c.is_disconnected());
}

#[test]
fn plain_bytes_after_starttls_end_the_connection() {
    let pki = Pki::new();
    let (server, addr) = serve(&pki);
    let mut c = plain(addr);
    let mut bytes = option_bytes(opt::STARTTLS, b"");
    bytes.extend_from_slice(&option_bytes(opt::GO, &info_data(NAME, &[])));
    c.stream.write_all(&bytes).unwrap();
    assert_eq!(c.option_reply(opt::STARTTLS).0, rep::ACK);
    assert!(c.is_disconnected());
    let mut c = plain(addr);
    assert_eq!(c.final_reply(opt::STARTTLS, b""), rep::ACK);
    c.stream.write_all(&noise(1, 5000)).unwrap();
    let _ = c.stream.read_to_end(&mut Vec::new());
    server.stop();
    assert_eq!(server.counters().failed, 2);
}

#[test]
fn a_client_that_sends_before_it_reads_does_not_deadlock_in_tls() {
    let pki = Pki::new();
    let (_server, addr) = serve(&pki);
    let mut c = tls(addr, pki.client_config(Some(&pki)));
    c.open(true);
    for cookie in 0..8000u64 {
        let bytes = request_bytes(0, cmd::READ, cookie, cookie * 4096, 4096);
        c.stream.write_all(&bytes).unwrap();
    }
    let data = noise(3, 200_000);
    let write = c.send(0, cmd::WRITE, 0, data.len() as u32, &data);
    for cookie in 0..8000u64 {
        assert_eq!(c.read_reply(cookie, 0, cookie * 4096, 4096), Ok(vec![0; 4096]));
    }
    assert_eq!(c.reply_error(write), 0);
}

#[test]
fn errors_name_the_certificate_or_key_file_that_cannot_be_used() {
    let pki = Pki::new();
    let [ca, cert, key] = ["ca-cert.pem", "server-cert.pem", "server-key.pem"].map(|f| pki.file(f));
    let refused =
        |ca: &Path, cert: &Path, key: &Path| TlsConfig::from_pem_files(ca, cert, key).err().unwrap();
    let none = pki.file("none.pem");
    for error in [refused(&none, &cert, &key), refused(&ca, &none, &key), refused(&ca, &cert, &none)] {
        assert!(matches!(&error, NbdError::TlsFile { path, .. } if *path == none), "{error}");
    }
    assert!(matches!(refused(&key, &cert, &key), NbdError::TlsFile { path, .. } if path == key));
    // A key of another certificate, and a well-formed key that the library cannot use.
    let other = pki.file("client-key.pem");
    let error = refused(&ca, &cert, &other);
    assert!(matches!(&error, NbdError::TlsFile { path, .. } if *path == other), "{error}");
    assert!(error.to_string().contains("server-cert.pem"), "{error}");
    let unusable = pki.file("rsa-key.pem");
    std::fs::write(&unusable, "-----BEGIN RSA PRIVATE KEY-----\nMAMCAQA=\n-----END RSA PRIVATE KEY-----\n")
        .unwrap();
    let error = refused(&ca, &cert, &unusable);
    assert!(matches!(&error, NbdError::TlsFile { path, .. } if *path == unusable), "{error}");
    assert!(error.to_string().contains("2048"), "{error}");
}

#[test]
fn libnbd_clients_work_over_tls() {
    let name = "libnbd_clients_work_over_tls";
    if !have("nbdinfo", name) || !have("nbdcopy", name) {
        return;
    }
    let pki = Pki::new();
    let (server, addr) = serve(&pki);
    let base = uri::tcp(NAME, addr, true);
    let uri = format!("{base}?tls-certificates={}", text(pki.dir.path()));
    let info = output("nbdinfo", &[&uri]);
    if String::from_utf8_lossy(&info.stderr).contains("TLS") && !info.status.success() {
        return pagefold_testkit::skipped!("{name}: libnbd is built without TLS");
    }
    assert!(String::from_utf8_lossy(&info.stdout).contains("TLS"), "{info:?}");
    let (source, copy) = (pki.file("source"), pki.file("copy"));
    std::fs::write(&source, noise(5, 64 << 20)).unwrap();
    run("nbdcopy", &["--connections=4", text(&source), &uri]);
    run("nbdcopy", &["--connections=4", &uri, text(&copy)]);
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&copy).unwrap());
    // Clients without a certificate, and without TLS, fail.
    let none = tempfile::tempdir().unwrap();
    assert!(
        !output("nbdinfo", &[&format!("{base}?tls-certificates={}", text(none.path()))]).status.success()
    );
    assert!(!output("nbdinfo", &[&uri::tcp(NAME, addr, false)]).status.success());
    drop(server);
}

#[test]
fn qemu_works_over_tls() {
    if !have("qemu-img", "qemu_works_over_tls") {
        return;
    }
    let pki = Pki::new();
    let (_server, addr) = serve(&pki);
    let creds = format!("tls-creds-x509,id=t,endpoint=client,dir={}", text(pki.dir.path()));
    let port = addr.port();
    let opts = format!(
        "driver=raw,file.driver=nbd,file.server.type=inet,file.server.host=127.0.0.1,file.server.port={port},file.export={NAME},file.tls-creds=t"
    );
    let info = run("qemu-img", &["info", "--object", &creds, "--image-opts", &opts]);
    assert!(info.contains("64 MiB"), "{info}");
}
