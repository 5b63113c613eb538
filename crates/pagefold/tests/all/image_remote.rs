//! Images on HTTP servers: every command, mounts, certificates, and servers that fail.

#[path = "../../../remote/tests/support/server.rs"]
pub mod server;

use crate::image_digest::{image, mount_sandbox};
use crate::image_mount::MountSandbox;
use crate::support::{Ran, Sandbox};
use server::{Fault, Object, Server};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Exit codes of the program.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const UNAVAILABLE: i32 = 5;
const DAMAGED: i32 = 6;

/// The path of the image on the server.
pub const PATH: &str = "/app.erofs";

/// A server with the image in this file.
pub fn serving(image: &Path) -> Server {
    let server = Server::start();
    server.put(PATH, Object::new(fs::read(image).unwrap(), "v0"));
    server
}

/// A command without the settings of this machine.
pub fn command(s: &Sandbox, words: &str) -> Command {
    let mut command = s.command(words);
    for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command
}

pub fn run(s: &Sandbox, words: &str) -> Ran {
    Ran::new(words, command(s, words).output().unwrap())
}

pub fn ok(s: &Sandbox, words: &str) -> String {
    let ran = run(s, words);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.out
}

#[test]
fn every_command_reads_an_image_by_its_url_as_from_its_file() {
    let s = Sandbox::new();
    let path = image(&s);
    let server = serving(&path);
    let url = server.url(PATH);
    for words in [
        "image ls -lR IMAGE",
        "image show IMAGE /text",
        "image show --json IMAGE",
        "image cat IMAGE /noise",
        "image check --json IMAGE",
        "image digest IMAGE --no-merkle-tree",
    ] {
        let of = |image: &str| ok(&s, &words.replace("IMAGE", image));
        assert_eq!(of(&url), of(&path.display().to_string()), "{words}");
    }
    let (out, archive, built) = (s.path("out"), s.path("archive"), s.path("built"));
    ok(&s, &format!("-q image extract {url} {}", out.display()));
    assert!(fs::read(out.join("noise")).unwrap() == fs::read(s.path("tree/noise")).unwrap());
    ok(&s, &format!("image tar {url} -o {}", archive.display()));
    ok(&s, &format!("-q image build {url} {} --verify", built.display()));
    assert!(ok(&s, &format!("image ls {}", built.display())).contains("noise"));
    // The tree of an image on a server is written only where the user says.
    let tree = s.path("tree.verity");
    let digest = ok(&s, &format!("image digest {url}"));
    assert_eq!(ok(&s, &format!("image digest {url} --out-merkle-tree {}", tree.display())), digest);
    let verified =
        format!("image cat {url} /noise --digest {} --merkle-tree {}", digest.trim(), tree.display());
    assert_eq!(ok(&s, &verified).len(), 300_000);
}

#[test]
fn a_digest_verifies_an_image_and_its_tree_that_are_both_on_the_server() {
    let s = Sandbox::new();
    let path = image(&s);
    let digest = s.ok(&format!("image digest {}", path.display()));
    let digest = digest.trim();
    let server = serving(&path);
    let check = format!("image check {} --digest {digest}", server.url(PATH));
    run(&s, &check).fails(NOT_FOUND, "'pagefold image digest' makes the Merkle tree");
    server.put("/app.erofs.verity", Object::new(fs::read(s.path("image.verity")).unwrap(), "t0"));
    ok(&s, &check);
    // Without a version the digest is enough.
    let mut bytes = fs::read(&path).unwrap();
    server.put(PATH, Object { bytes: Arc::new(bytes.clone()), etag: None, last_modified: None });
    run(&s, &check.replace("--digest", "--timeout 5s --salt 00 --digest")).fails(DAMAGED, "another salt");
    ok(&s, &check);
    run(&s, check.split(" --digest").next().unwrap())
        .fails(UNAVAILABLE, "which version of the object it sends");
    let at = bytes.len() - 5000;
    bytes[at] ^= 1;
    server.put(PATH, Object::new(bytes, "v1"));
    let ran = run(&s, &check);
    assert!(ran.code == DAMAGED && (ran.out + &ran.err).contains("differs from its digest"));
}

#[test]
fn errors_of_servers_have_exit_codes_and_reasons() {
    let s = Sandbox::new();
    let server = serving(&image(&s));
    let ls = format!("image ls {} --timeout 1s", server.url(PATH));
    run(&s, &ls.replace("app.", "no.")).fails(NOT_FOUND, "there is no such object");
    for (fault, code, says) in [
        (Fault::Whole, UNAVAILABLE, "does not answer range requests"),
        (Fault::Status(403, None), UNAVAILABLE, "PAGEFOLD_HTTP_AUTHORIZATION"),
        (Fault::Status(503, None), FAILED, "no answer within 1 s: the server answers with status 503"),
        (Fault::Shifted(4096), FAILED, "were asked for"),
    ] {
        server.fail(move |_| fault.clone());
        run(&s, &ls).fails(code, says);
    }
    run(&s, "image ls http://me:secret@localhost/x").fails(USAGE, "leave them out");
    run(&s, "image ls https:///x").fails(USAGE, "names no host");
    run(&s, &ls.replace("1s", "0")).fails(USAGE, "--timeout is between");
    let kernel = format!("image mount {} {} --kernel", server.url(PATH), s.path("tree").display());
    if crate::support::is_root() {
        run(&s, &kernel).fails(USAGE, "is a URL; mount it without --kernel");
    }
}

fn mount_words(s: &MountSandbox, server: &Server, more: &str) -> String {
    format!("image mount {}?signature=abc {} --timeout 2s {more}", server.url(PATH), s.at.display())
}

fn read_whole(s: &MountSandbox) -> std::io::Result<Vec<u8>> {
    fs::read(s.at.join("noise"))
}

#[test]
fn a_mount_reads_from_its_server_and_shows_no_secrets() {
    let Some(s) = mount_sandbox("a_mount_reads_from_its_server_and_shows_no_secrets") else { return };
    let server = serving(&s.image);
    let words = mount_words(&s, &server, "");
    let mounted =
        command(&s.inner, &words).env("PAGEFOLD_HTTP_AUTHORIZATION", "Bearer hidden").output().unwrap();
    assert!(mounted.status.success(), "{mounted:?}");
    assert!(read_whole(&s).unwrap() == fs::read(s.inner.path("tree/noise")).unwrap());
    let requests = server.take_log();
    assert!(requests.iter().all(|request| request.headers["authorization"] == "Bearer hidden"));

    let stats = s.stats();
    assert_eq!(stats["image"], format!("{}?...", server.url(PATH)));
    assert_eq!(stats["remote"]["requests"], requests.len());
    assert!(
        stats["remote"]["received_bytes"].as_u64() > Some(300_000) && stats["remote"]["last_error"].is_null()
    );
    let text =
        s.ok(&s.words("stats", "")) + &s.ok("image mounts") + &fs::read_to_string("/proc/mounts").unwrap();
    assert!(text.contains("requests to servers"), "{text}");
    let pid = stats["server"]["pid"].as_u64().unwrap();
    let of_server = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap();
    let process =
        String::from_utf8_lossy(&[of_server("cmdline"), of_server("environ")].concat()).into_owned();
    let files = Command::new("grep").args(["-rl", "hidden\\|abc"]).arg(s.inner.runtime()).output().unwrap();
    assert!(files.stdout.is_empty(), "{files:?}");
    assert!(![text, process].iter().any(|text| text.contains("hidden") || text.contains("=abc")));
    // A mount is found by the URL, too.
    s.ok(&format!("image unmount {}?signature=abc", server.url(PATH)));
    s.assert_nothing_left();
}

#[test]
fn an_object_that_is_replaced_under_a_mount_fails_reads_with_eio() {
    let Some(s) = mount_sandbox("an_object_that_is_replaced_under_a_mount_fails_reads_with_eio") else {
        return;
    };
    let server = serving(&s.image);
    ok(&s.inner, &mount_words(&s, &server, ""));
    let bytes = fs::read(&s.image).unwrap();
    server.put(PATH, Object::new(bytes.clone(), "v1"));
    let noise = fs::File::open(s.at.join("noise")).unwrap();
    let mut buf = vec![0; 4096];
    let error = noise.read_exact_at(&mut buf, 200_000).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let last = s.stats()["remote"]["last_error"].as_str().unwrap().to_string();
    assert!(last.contains("the object has changed since it was opened"), "{last}");
    drop(noise);
    server.put(PATH, Object::new(bytes, "v0"));
    assert!(read_whole(&s).unwrap() == fs::read(s.inner.path("tree/noise")).unwrap());
    ok(&s.inner, &s.words("unmount", ""));
    s.assert_nothing_left();
}

#[test]
fn a_dead_server_fails_reads_by_the_deadline_and_a_mount_outlives_it() {
    let Some(s) = mount_sandbox("a_dead_server_fails_reads_by_the_deadline_and_a_mount_outlives_it") else {
        return;
    };
    let server = serving(&s.image);
    ok(&s.inner, &mount_words(&s, &server, ""));
    let address = server.address;
    drop(server);
    let start = Instant::now();
    let error = read_whole(&s).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2 * 2 + 3), "{took:?}");
    let last = s.stats()["remote"]["last_error"].as_str().unwrap().to_string();
    assert!(last.contains("no answer within 2 s"), "{last}");

    let server = Server::start_at(address, None);
    server.put(PATH, Object::new(fs::read(&s.image).unwrap(), "v0"));
    assert!(read_whole(&s).unwrap() == fs::read(s.inner.path("tree/noise")).unwrap());
    drop(server);
    // Unmounting waits for no server.
    let start = Instant::now();
    ok(&s.inner, &s.words("unmount", ""));
    s.assert_nothing_left();
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// A server that has a self-signed certificate for these names, and the certificate as a file has it.
pub fn certified_server(names: &[&str]) -> (Server, String) {
    let names: Vec<_> = names.iter().map(|name| name.to_string()).collect();
    server_with(rcgen::CertificateParams::new(names).unwrap())
}

/// The same, with this certificate.
pub fn server_with(certificate: rcgen::CertificateParams) -> (Server, String) {
    let key_pair = rcgen::KeyPair::generate().unwrap();
    let certificate = certificate.self_signed(&key_pair).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key_pair.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key.into());
    let server = Server::start_at("127.0.0.1:0".parse().unwrap(), Some(Arc::new(config.unwrap())));
    (server, certificate.pem())
}

#[test]
fn https_needs_a_certificate_that_the_system_trusts() {
    let s = Sandbox::new();
    let path = image(&s);
    let (server, certificate) = certified_server(&["127.0.0.1", "localhost"]);
    server.put(PATH, Object::new(fs::read(&path).unwrap(), "v0"));
    let ca = s.path("ca.pem");
    fs::write(&ca, certificate).unwrap();
    let cat = format!("image cat {} /noise", server.url(PATH));
    let trusting = command(&s, &cat).env("SSL_CERT_FILE", &ca).output().unwrap();
    assert!(trusting.status.success() && trusting.stdout.len() == 300_000, "{trusting:?}");
    let start = Instant::now();
    let refused = run(&s, &cat);
    assert!(refused.code == FAILED || refused.code == UNAVAILABLE, "{refused:?}");
    assert!(refused.err.contains("certificate") && start.elapsed() < Duration::from_secs(10), "{refused:?}");
    // From https:// to http:// no redirect is followed.
    let plain = serving(&path);
    let target = plain.url(PATH);
    server.fail(move |_| Fault::Redirect(target.clone()));
    let ran = command(&s, &cat).env("SSL_CERT_FILE", &ca).output().unwrap();
    assert!(!ran.status.success() && plain.take_log().is_empty());
    let complaint = String::from_utf8_lossy(&ran.stderr);
    let both = [server.url(PATH), plain.url(PATH)];
    assert!(
        complaint.contains(&format!("'{}' leads to '{}', which is not encrypted", both[0], both[1])),
        "{ran:?}"
    );
}

#[test]
fn commands_that_read_all_of_an_image_take_it_from_a_server_without_ranges() {
    let s = Sandbox::new();
    let path = image(&s);
    let server = serving(&path);
    server.fail(|_| Fault::Whole);
    let url = server.url(PATH);
    let (copy, out, temporary) = (s.path("copy.erofs"), s.path("out"), s.path("temporary"));
    fs::create_dir(&temporary).unwrap();
    let whole = |words: &str| {
        let mut command = command(&s, words);
        let ran = Ran::new(words, command.env("TMPDIR", &temporary).output().unwrap());
        assert!(ran.code == 0 && ran.err.contains("the whole object is downloaded"), "{ran:?}");
        ran
    };
    whole(&format!("image copy {url} {}", copy.display()));
    assert!(fs::read(&copy).unwrap() == fs::read(&path).unwrap());
    whole(&format!("image extract {url} {}", out.display()));
    assert!(fs::read(out.join("noise")).unwrap() == fs::read(s.path("tree/noise")).unwrap());
    whole(&format!("image check {url}"));
    whole(&format!("image tar {url} -o {}", s.path("all.tar").display()));
    whole(&format!("image digest {url}"));
    whole(&format!("image build {url} {}", s.path("built.erofs").display()));
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    run(&s, &format!("image ls {url}")).fails(UNAVAILABLE, "'pagefold image copy' downloads it");
}
