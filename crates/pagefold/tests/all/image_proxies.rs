//! Images behind proxies, and servers that are not what a URL says.

use crate::image_digest::{image, mount_sandbox};
use crate::image_remote::server::{Fault, Object, Server};
use crate::image_remote::{PATH, certified_server, server_with};
use crate::image_stores::registry::{self, EROFS, IMAGE, Manifests, NAME, descriptor, put_blob};
use crate::image_stores::s3_store::{StoreKey, judge};
use crate::image_stores::{REGION, ok, run};
use crate::support::Sandbox;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Exit codes of the program.
const FAILED: i32 = 1;
const NOT_FOUND: i32 = 3;
const UNAVAILABLE: i32 = 5;

/// A proxy that leads every connection to one server, and its log of the names that were asked for.
fn proxy(target: SocketAddr) -> (SocketAddr, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(client.try_clone().unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|len| len > 0) {}
                let _ = sender.send(head.split(' ').nth(1).unwrap_or_default().to_string());
                (&client).write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
                lead(client, reader, target);
            });
        }
    });
    (address, asked)
}

/// Leads a connection, whose next bytes come from `reader`, to a server until one of them ends.
fn lead(mut client: TcpStream, mut reader: impl Read, target: SocketAddr) {
    let server = TcpStream::connect(target).unwrap();
    let (mut to_server, mut from_server) = (server.try_clone().unwrap(), server);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_server, &mut client);
        let _ = client.shutdown(Shutdown::Both);
    });
    let _ = std::io::copy(&mut reader, &mut to_server);
    let _ = to_server.shutdown(Shutdown::Both);
}

/// A proxy of SOCKS 5 that leads every connection to one server, and its log of the names that were asked for.
fn socks_proxy(target: SocketAddr) -> (SocketAddr, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let read = |client: &mut TcpStream, len: usize| {
                let mut bytes = vec![0; len];
                client.read_exact(&mut bytes).unwrap();
                bytes
            };
            let methods = read(&mut client, 2)[1];
            read(&mut client, methods.into());
            client.write_all(&[5, 0]).unwrap();
            // Connect, to a name, which a byte with its length begins; then the port.
            assert_eq!(read(&mut client, 4), [5, 1, 0, 3]);
            let len = read(&mut client, 1)[0];
            let name = read(&mut client, len.into());
            read(&mut client, 2);
            client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
            let _ = sender.send(String::from_utf8(name).unwrap());
            std::thread::spawn(move || lead(client.try_clone().unwrap(), client, target));
        }
    });
    (address, asked)
}

#[test]
fn a_proxy_of_socks_resolves_names() {
    let s = Sandbox::new();
    let server = Server::start();
    server.put(PATH, Object::new(fs::read(image(&s)).unwrap(), "v0"));
    let (address, asked) = socks_proxy(server.address);
    let cat = format!("image cat http://images.example.org{PATH} /noise --timeout 5s");
    assert_eq!(ok(&s, &cat, &[("all_proxy", &format!("socks5h://{address}"))]).len(), 300_000);
    assert!(asked.try_iter().all(|name| name == "images.example.org"));
    assert!(server.take_log().iter().all(|request| request.origin.is_none()));
}

/// A bucket of AWS and a registry, by their names, over TLS and a proxy: the names exist nowhere but in the certificate.
#[test]
fn stores_are_reached_by_a_proxy_and_certificates_that_the_user_trusts() {
    let s = Sandbox::new();
    let path = image(&s);
    let (server, certificate) =
        certified_server(&["images.s3.eu-west-3.amazonaws.com", "registry.example.org"]);
    let blob = fs::read(&path).unwrap();
    server.put("/app.erofs", Object::new(blob.clone(), "v0"));
    put_blob(&server, &blob);
    let mut manifests = Manifests::default();
    manifests.add("1", IMAGE, &registry::image(&[descriptor(EROFS, &blob, "")]));
    server.fail(move |request| match request.path.as_str() {
        "/app.erofs" => judge(request, &StoreKey::numbered(0), REGION),
        _ => manifests.answer(request),
    });
    let ca = s.path("ca.pem");
    fs::write(&ca, certificate).unwrap();
    let (address, asked) = proxy(server.address);
    let (address, ca) = (format!("http://{address}"), ca.display().to_string());
    let variables = [
        ("HTTPS_PROXY", address.as_str()),
        ("SSL_CERT_FILE", ca.as_str()),
        ("AWS_REGION", REGION),
        ("AWS_ACCESS_KEY_ID", "KEY0"),
        ("AWS_SECRET_ACCESS_KEY", "hidden0"),
        ("AWS_SESSION_TOKEN", "session0"),
    ];
    for (name, host) in [
        ("s3://images/app.erofs", "images.s3.eu-west-3.amazonaws.com:443"),
        ("oci://registry.example.org/me/app:1", "registry.example.org:443"),
    ] {
        assert_eq!(ok(&s, &format!("image cat {name} /noise"), &variables).len(), 300_000);
        let hosts: Vec<_> = asked.try_iter().collect();
        assert!(!hosts.is_empty() && hosts.iter().all(|asked| asked == host), "{hosts:?}");
        let untrusted = run(&s, &format!("image cat {name} /noise --timeout 2s"), &variables[..1]);
        assert!(
            untrusted.code != 0 && untrusted.err.contains("certificate") && !untrusted.err.contains("hidden"),
            "{untrusted:?}"
        );
        asked.try_iter().for_each(drop);
    }
}

/// A server or proxy that answers every request with this status, and tells of each.
fn refusing(status: &'static str) -> (String, std::sync::mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, asked) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(client.try_clone().unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|len| len > 0) {}
            let _ = sender.send(());
            let _ = (&client).write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes());
        }
    });
    (address, asked)
}

#[test]
fn a_refusal_of_a_proxy_is_final_and_says_what_to_do() {
    let s = Sandbox::new();
    for (status, help) in
        [("407 Proxy Authentication Required", "write them into the variable"), ("403 Forbidden", "NO_PROXY")]
    {
        let (address, asked) = refusing(status);
        let begun = Instant::now();
        let words = "image ls --timeout 60s https://example.invalid/a.erofs";
        let ran = run(&s, words, &[("HTTPS_PROXY", &address)]);
        assert!(ran.code != 0 && ran.err.contains(help) && ran.err.contains(&status[..3]), "{ran:?}");
        assert_eq!(asked.try_iter().count(), 1);
        assert!(begun.elapsed() < Duration::from_secs(50));
    }
    let variables = [("HTTPS_PROXY", "secret://")];
    let ran = run(&s, "image ls https://example.invalid/a.erofs", &variables);
    assert!(ran.code == UNAVAILABLE && ran.err.contains("HTTPS_PROXY does not name a proxy"), "{ran:?}");
    assert!(!ran.err.contains("secret"), "{ran:?}");
}

#[test]
fn a_wrong_scheme_is_named() {
    let s = Sandbox::new();
    let (server, _) = refusing("400 Bad Request");
    let url = server.replace("http://", "https://");
    let ran = run(&s, &format!("image ls --timeout 60s {url}/a.erofs"), &[]);
    assert!(ran.code != 0 && ran.err.contains("is asked by http://"), "{ran:?}");
    for name in ["ftp://example.org/a.erofs", "gcs://bucket/a.erofs"] {
        run(&s, &format!("image ls {name}"), &[]).fails(NOT_FOUND, "http://, https://, s3://");
    }
    run(&s, "image ls no-such-file", &[]).fails(NOT_FOUND, "No such file");
}

/// A server or a proxy asked by `http` may be the beginning of a way that goes on by `https`.
#[test]
fn redirects_and_proxies_lead_from_http_to_https() {
    let s = Sandbox::new();
    let path = image(&s);
    let blob = fs::read(&path).unwrap();
    let (store, certificate) = certified_server(&["127.0.0.1", "localhost"]);
    store.put(PATH, Object::new(blob.clone(), "v0"));
    let ca = s.path("ca.pem");
    fs::write(&ca, certificate).unwrap();
    let ca = ca.display().to_string();
    let trusting = ("SSL_CERT_FILE", ca.as_str());
    let (front, target) = (Server::start(), store.url(PATH));
    front.fail(move |_| Fault::Redirect(target.clone()));
    let cat = format!("image cat {} /noise --timeout 5s", front.url(PATH));
    assert_eq!(ok(&s, &cat, &[trusting]).len(), 300_000);
    let untrusted = run(&s, &cat, &[]);
    assert!(untrusted.code == FAILED && untrusted.err.contains("certificate"), "{untrusted:?}");
    // The registry is asked by http, and its manifests and blobs are elsewhere.
    let mut manifests = Manifests::default();
    manifests.add("1", IMAGE, &registry::image(&[descriptor(EROFS, &blob, "")]));
    put_blob(&store, &blob);
    store.fail(move |request| manifests.answer(request));
    let base = store.url("");
    front.fail(move |request| Fault::Redirect(format!("{base}{}", request.path)));
    let of_registry = format!("image cat oci://{}/{NAME}:1 /noise --timeout 5s", front.address);
    assert_eq!(ok(&s, &of_registry, &[trusting]).len(), 300_000);
    // A proxy by https, which has the object itself.
    store.fail(|_| Fault::None);
    store.take_log();
    let proxy = store.url("");
    let variables = [trusting, ("ALL_PROXY", proxy.as_str())];
    let by_proxy = "image cat http://images.example.org/app.erofs /noise --timeout 5s";
    assert_eq!(ok(&s, by_proxy, &variables).len(), 300_000);
    assert!(
        store.take_log().iter().all(|request| request.origin.as_deref() == Some("http://images.example.org"))
    );
}

/// As curl and Go choose: a request for `http://` is sent whole, and the other variables do not matter.
#[test]
fn the_scheme_chooses_the_proxy_and_plain_requests_are_forwarded() {
    let s = Sandbox::new();
    let path = image(&s);
    let proxy = Server::start();
    proxy.put(PATH, Object::new(fs::read(&path).unwrap(), "v0"));
    let address = format!("http://me:hid%20den@{}", proxy.address);
    let dead = "http://me:hidden@127.0.0.1:9";
    let cat = format!("image cat http://images.example.org:8080{PATH} /noise --timeout 5s --no-cache");
    for name in ["http_proxy", "HTTP_PROXY", "ALL_PROXY"] {
        let variables =
            [(name, address.as_str()), ("HTTPS_PROXY", dead), ("NO_PROXY", "10.0.0.0/8,example.org:443")];
        assert_eq!(ok(&s, &cat, &variables).len(), 300_000);
        let log = proxy.take_log();
        assert!(!log.is_empty());
        for request in log {
            assert_eq!((request.method.as_str(), request.path.as_str()), ("GET", PATH));
            assert_eq!(request.origin.as_deref(), Some("http://images.example.org:8080"));
            assert_eq!(request.headers["host"], "images.example.org:8080");
            assert_eq!(request.headers["proxy-authorization"], "Basic bWU6aGlkIGRlbg==");
        }
    }
    // Nothing is asked for https, and what cannot be reached is named, without the password.
    for (url, proxies) in [
        ("https://images.example.org/a", [("https_proxy", dead), ("http_proxy", address.as_str())]),
        ("http://images.example.org/a", [("http_proxy", dead), ("https_proxy", address.as_str())]),
    ] {
        let ran = run(&s, &format!("image ls {url} --timeout 1s"), &proxies);
        assert!(
            ran.code != 0 && ran.err.contains("http://127.0.0.1:9") && !ran.err.contains("hidden"),
            "{ran:?}"
        );
    }
    assert!(proxy.take_log().is_empty());
    for (status, help) in [(407, "write them into the variable"), (502, "answers with status 502")] {
        proxy.fail(move |_| Fault::Status(status, None));
        let ran = run(&s, &cat.replace("5s", "1s"), &[("http_proxy", &address)]);
        assert!(
            ran.code != 0 && ran.err.contains(help) && ran.err.contains(&proxy.address.to_string()),
            "{ran:?}"
        );
        assert!(!ran.err.contains("hid"), "{ran:?}");
    }
}

#[test]
fn a_mount_follows_its_server_from_http_to_https() {
    let Some(s) = mount_sandbox("a_mount_follows_its_server_from_http_to_https") else { return };
    let blob = fs::read(&s.image).unwrap();
    let (store, certificate) = certified_server(&["127.0.0.1"]);
    store.put(PATH, Object::new(blob.clone(), "v0"));
    let ca = s.inner.path("ca.pem");
    fs::write(&ca, certificate).unwrap();
    let front = Server::start();
    front.put(PATH, Object::new(blob, "v0"));
    let words =
        format!("image mount {} {} --no-cache --no-readahead --timeout 5s", front.url(PATH), s.at.display());
    ok(&s.inner, &words, &[("SSL_CERT_FILE", ca.to_str().unwrap())]);
    let target = store.url(PATH);
    front.fail(move |_| Fault::Redirect(target.clone()));
    assert!(fs::read(s.at.join("noise")).unwrap() == fs::read(s.inner.path("tree/noise")).unwrap());
    assert!(!store.take_log().is_empty());
    ok(&s.inner, &s.words("unmount", ""), &[]);
    s.assert_nothing_left();
}

/// Lets a server have the image in the repository of the tests, with the tag `1`.
fn serve_registry(server: &Server, blob: &[u8]) {
    let mut manifests = Manifests::default();
    manifests.add("1", IMAGE, &registry::image(&[descriptor(EROFS, blob, "")]));
    put_blob(server, blob);
    server.fail(move |request| manifests.answer(request));
}

#[test]
fn a_registry_on_this_machine_may_speak_tls_and_one_elsewhere_may_not() {
    let s = Sandbox::new();
    let blob = fs::read(image(&s)).unwrap();
    let (secure, certificate) = certified_server(&["127.0.0.1"]);
    serve_registry(&secure, &blob);
    let ca = s.path("ca.pem");
    fs::write(&ca, certificate).unwrap();
    let trusting = [("SSL_CERT_FILE", ca.to_str().unwrap())];
    let cat = format!("image cat oci://{}/{NAME}:1 /noise --timeout 5s", secure.address);
    assert_eq!(ok(&s, &cat, &trusting).len(), 300_000);
    let untrusted = run(&s, &cat, &[]);
    let scheme = format!("'https://{}'", secure.address);
    assert!(untrusted.err.contains("certificate") && untrusted.err.contains(&scheme), "{untrusted:?}");
    // Elsewhere, as a proxy shows it: only a name that says so is asked without TLS, and gets no login.
    let plain = Server::start();
    serve_registry(&plain, &blob);
    fs::create_dir_all(s.path("home/.config/containers")).unwrap();
    let logins = r#"{"auths": {"registry.example.org": {"auth": "bWU6aGlkZGVu"}}}"#;
    fs::write(s.path("home/.config/containers/auth.json"), logins).unwrap();
    let proxy_url = format!("http://{}", plain.address);
    let cat = format!("image cat oci+http://registry.example.org/{NAME}:1 /noise --timeout 5s --no-cache");
    assert_eq!(ok(&s, &cat, &[("http_proxy", &proxy_url)]).len(), 300_000);
    for request in plain.take_log() {
        assert_eq!(request.origin.as_deref(), Some("http://registry.example.org"));
        assert!(!request.headers.contains_key("authorization"), "{request:?}");
    }
    plain.fail(|request| match request.headers.contains_key("authorization") {
        true => panic!("a login was sent without TLS"),
        false => Fault::Answer(401, "WWW-Authenticate: Basic realm=\"r\"\r\n".into(), Vec::new()),
    });
    run(&s, &cat, &[("http_proxy", &proxy_url)]).fails(UNAVAILABLE, "is not sent without TLS");
    let (server, _) = refusing("400 Bad Request");
    let (tunnel, _asked) = proxy(server.trim_start_matches("http://").parse().unwrap());
    let tunnel = format!("http://{tunnel}");
    let ran = run(&s, &cat.replace("oci+http", "oci"), &[("https_proxy", &tunnel)]);
    assert!(ran.code != 0 && ran.err.contains("begins with oci+http://registry.example.org/"), "{ran:?}");
}

/// As `openssl req -x509` makes it.
#[test]
fn a_certificate_that_is_an_authority_is_refused_with_advice() {
    let s = Sandbox::new();
    let mut certificate = rcgen::CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap();
    certificate.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let (server, certificate) = server_with(certificate);
    let ca = s.path("ca.pem");
    fs::write(&ca, certificate).unwrap();
    let ran = run(&s, &format!("image ls {}", server.url(PATH)), &[("SSL_CERT_FILE", ca.to_str().unwrap())]);
    assert!(ran.code != 0 && ran.err.contains("basicConstraints=critical,CA:FALSE"), "{ran:?}");
}

#[test]
fn a_program_for_logins_that_is_missing_is_a_note() {
    let s = Sandbox::new();
    let blob = fs::read(image(&s)).unwrap();
    let server = Server::start();
    serve_registry(&server, &blob);
    fs::create_dir_all(s.path("docker")).unwrap();
    let folder = s.path("docker").display().to_string();
    for (config, note) in
        [("", ""), (r#"{"credsStore": "pagefold-none"}"#, "docker-credential-pagefold-none")]
    {
        fs::write(s.path("docker/config.json"), config).unwrap();
        let ran =
            run(&s, &format!("image ls oci://{}/{NAME}:1", server.address), &[("DOCKER_CONFIG", &folder)]);
        assert!(ran.code == 0 && ran.err.contains(note), "{ran:?}");
    }
}
