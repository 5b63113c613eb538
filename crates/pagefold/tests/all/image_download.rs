//! Servers that do not answer range requests: downloads that a signal ends, and folders that take none.

use crate::image_digest::image;
use crate::image_remote::server::{Fault, Object, Server};
use crate::image_stores::registry::{IMAGE, NAME, descriptor, digest};
use crate::image_stores::{command, run};
use crate::support::{Sandbox, kill, no_interrupts, wait_until};
use pagefold_testkit::skipped;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Exit codes of the program.
const UNAVAILABLE: i32 = 5;

/// The length of objects that nobody waits for, bytes.
const ENDLESS_BYTES: usize = 100_000_000;

/// A manifest of an image with two layers that are archives, and its configuration.
fn manifest() -> [String; 2] {
    let layers = ["a", "b"].map(|layer| {
        let layer = descriptor("application/vnd.oci.image.layer.v1.tar", layer.as_bytes(), "");
        layer.replace("\"size\": 1", &format!("\"size\": {ENDLESS_BYTES}"))
    });
    let ids = ["a", "b"].map(|layer| format!("\"{}\"", digest(layer.as_bytes())));
    let config = format!("{{\"rootfs\": {{\"type\": \"layers\", \"diff_ids\": [{}]}}}}", ids.join(", "));
    let of_config = descriptor("application/vnd.oci.image.config.v1+json", config.as_bytes(), "");
    let manifest = format!(
        "{{\"schemaVersion\": 2, \"mediaType\": \"{IMAGE}\", \"config\": {of_config}, \"layers\": [{}]}}",
        layers.join(", ")
    );
    [manifest, config]
}

/// Answers one request: for a manifest or its configuration with that, and for anything else, whole or in parts, with an object
/// that comes by 1000 bytes ten times in a second.
fn answer(mut stream: TcpStream, [manifest, config]: &[String; 2], is_sending: &AtomicBool) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let request: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let path = request.first().cloned().unwrap_or_default();
    let small = match path {
        path if path.contains("/manifests/") => Some(manifest),
        path if path.contains(&digest(config.as_bytes())) => Some(config),
        _ => None,
    };
    let len = small.map_or(ENDLESS_BYTES, String::len);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(head.as_bytes());
    if let Some(text) = small {
        return stream.write_all(text.as_bytes()).unwrap_or_default();
    }
    let is_whole = !request.iter().any(|line| line.to_ascii_lowercase().starts_with("range:"));
    is_sending.fetch_or(is_whole, Ordering::SeqCst);
    while stream.write_all(&[7; 1000]).is_ok() {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The address of such a server. The value becomes true when a whole object is on its way.
fn endless_server() -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (is_sending, texts) = (Arc::new(AtomicBool::new(false)), Arc::new(manifest()));
    let sending = is_sending.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (sending, texts) = (sending.clone(), texts.clone());
            std::thread::spawn(move || answer(stream.unwrap(), &texts, &sending));
        }
    });
    (address, is_sending)
}

#[test]
fn a_signal_ends_the_download_of_a_whole_object() {
    let test = "a_signal_ends_the_download_of_a_whole_object";
    if let Some(reason) = no_interrupts() {
        skipped!("{test}: {reason}");
        return;
    }
    let s = Sandbox::new();
    let (address, is_sending) = endless_server();
    let (out, cache) = (s.path("out").display().to_string(), s.path("cache").display().to_string());
    let (url, name) = (format!("http://{address}/app.erofs"), format!("oci://{address}/{NAME}:1"));
    for words in [
        format!("image copy {url} {out}"),
        format!("image digest {url} --out-merkle-tree {out}"),
        format!("image tar {url} -o {out}"),
        format!("image build {url} {out}"),
        format!("image build {name} {out}"),
        format!("image build --layer-cache {cache} {name}"),
    ] {
        for signal in ["INT", "TERM"] {
            is_sending.store(false, Ordering::SeqCst);
            let mut command = command(&s, &format!("{words} --timeout 1h"), &[]);
            let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
            wait_until("an object is on its way", || {
                is_sending.load(Ordering::SeqCst) || child.try_wait().unwrap().is_some()
            });
            kill(child.id() as i32, signal);
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            let is_interrupted = output.status.code() == Some(1) && said.contains("interrupted: '");
            assert!(is_interrupted, "{words}, {signal}: {:?}, {said}", output.status);
            let left = fs::read_dir(s.path("")).unwrap().map(|entry| entry.unwrap().file_name());
            let left: Vec<_> = left.filter(|name| name != "cache" && name != "run").collect();
            assert!(left.is_empty(), "{words}, {signal}: {left:?}");
        }
    }
    let parts = std::process::Command::new("find").args([&cache, "-type", "f"]).output().unwrap();
    assert!(parts.stdout.is_empty(), "{parts:?}");
}

#[test]
fn a_download_without_a_temporary_file_says_why() {
    let s = Sandbox::new();
    let server = Server::start();
    server.put("/app.erofs", Object::new(fs::read(image(&s)).unwrap(), "v0"));
    server.fail(|_| Fault::Whole);
    let words = format!("image copy {} {}", server.url("/app.erofs"), s.path("out").display());
    let ran = run(&s, &words, &[("TMPDIR", "/nonexistent")]);
    ran.fails(UNAVAILABLE, "no temporary file can be made in '/nonexistent': No such file");
    ran.fails(UNAVAILABLE, "TMPDIR names another folder");
    assert_eq!(run(&s, &words, &[]).code, 0);
}
