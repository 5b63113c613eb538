//! Images in a registry: manifests that are verified, tokens that expire, and registries that mislead.

use crate::registry::{
    EROFS, IMAGE, INDEX, Manifests, NAME, descriptor, digest, image, index, put_blob, token_answer,
    unauthorized,
};
use crate::server::{Fault, Object, Request, Server};
use crate::{BLOCK, LEN, contents, options, read, read_at_once};
use pagefold_backing::{BackingError, ByteSource};
use pagefold_remote::oci::{self, ImageUpload, Login, OciImage, OciReference, Platform, Pushed, Upload};
use pagefold_remote::whole::WholeHash;
use pagefold_remote::{RemoteError, RemoteSource, Secret, Spool};
use std::collections::HashMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A registry with the image, whose tag is `1`.
fn registry() -> (Server, Manifests, String) {
    let (server, mut manifests) = (Server::start(), Manifests::default());
    let blob = contents(0);
    put_blob(&server, &blob);
    let manifest = image(&[descriptor(EROFS, &blob, "")]);
    manifests.add("1", IMAGE, &manifest);
    let answers = manifests.clone();
    server.fail(move |request| answers.answer(request));
    (server, manifests, manifest)
}

fn resolve_as(server: &Server, target: &str, login: Option<&Login>) -> Result<OciImage, RemoteError> {
    let reference = OciReference::parse(&format!("oci://{}/{NAME}{target}", server.address)).unwrap();
    oci::resolve(&reference, login, &"linux/amd64".parse::<Platform>().unwrap(), Duration::from_secs(5))
}

fn resolve(server: &Server, target: &str) -> Result<OciImage, RemoteError> {
    resolve_as(server, target, None)
}

fn open(image: &OciImage, timeout_ms: u64) -> Result<RemoteSource, RemoteError> {
    image.open(&pagefold_remote::Options { cache_bytes: 0, ..options(timeout_ms) })
}

fn refused(result: Result<OciImage, RemoteError>) -> String {
    result.err().unwrap().to_string()
}

#[test]
fn an_image_is_found_by_tag_and_by_digest_and_has_one_version() {
    let (server, _, manifest) = registry();
    let digest = digest(manifest.as_bytes());
    for target in [":1".to_string(), format!("@{digest}"), format!(":other@{digest}")] {
        let image = resolve(&server, &target).unwrap();
        assert_eq!(image.manifest_digest(), digest);
        let source = open(&image, 10_000).unwrap();
        read(&source, 0, LEN).unwrap();
        assert!(source.describe().contains(&format!("/{NAME}")), "{}", source.describe());
    }
    // Servers behind a registry may have other entity tags each: the name of the blob is its version.
    let blob = contents(0);
    let path = format!("/v2/{NAME}/blobs/{}", crate::registry::digest(&blob));
    server.put(&path, Object::new(blob.clone(), "first"));
    let source = open(&resolve(&server, ":1").unwrap(), 10_000).unwrap();
    server.put(&path, Object::new(blob.clone(), "second"));
    read(&source, 0, LEN).unwrap();
    assert!(server.take_log().iter().all(|request| !request.headers.contains_key("if-match")));
    // Another length is another blob.
    let mut longer = blob;
    longer.push(0);
    server.put(&path, Object::new(longer, "first"));
    assert!(matches!(read(&source, 5 * BLOCK, 1), Err(BackingError::Mismatch { .. })));
    assert!(matches!(open(&resolve(&server, ":1").unwrap(), 2000), Err(RemoteError::Changed { .. })));
    assert!(resolve(&server, ":none").err().unwrap().is_missing());
}

#[test]
fn manifests_that_are_not_those_of_their_digest_are_refused() {
    let (server, mut manifests, manifest) = registry();
    let other = digest(b"another manifest");
    manifests.add_as(&other, &manifest);
    // An index whose entry has the right digest and a wrong length.
    let wrong = descriptor(IMAGE, manifest.as_bytes(), "").replace("\"size\": ", "\"size\": 1");
    manifests.add("wrong", INDEX, &index(&[wrong]));
    let huge = descriptor(IMAGE, b"x", "").replace("\"size\": 1", "\"size\": 5000000");
    manifests.add("huge-entry", INDEX, &index(&[huge]));
    manifests.add("huge", IMAGE, &format!("{manifest}{}", " ".repeat(5 << 20)));
    manifests.add("none", IMAGE, "{\"schemaVersion\": 2}");
    manifests.add("html", "text/html", "<html>");
    server.fail(move |request| manifests.answer(request));
    assert!(refused(resolve(&server, &format!("@{other}"))).contains("has another digest"));
    assert!(refused(resolve(&server, ":wrong")).contains("has another digest"));
    assert!(refused(resolve(&server, ":huge-entry")).contains("longer than 4194304 bytes"));
    assert!(refused(resolve(&server, ":huge")).contains("longer than 4194304 bytes"));
    assert!(refused(resolve(&server, ":none")).contains("neither layers nor manifests"));
    assert!(refused(resolve(&server, ":html")).contains("it is no manifest"));
}

#[test]
fn platforms_are_chosen_and_indexes_without_an_end_refused() {
    let (server, mut manifests, manifest) = registry();
    let for_platform = |text: &str, kind: &str, platform: &str| {
        let (os, architecture) = platform.split_once('/').unwrap();
        let platform = format!(", \"platform\": {{\"os\": \"{os}\", \"architecture\": \"{architecture}\"}}");
        descriptor(kind, text.as_bytes(), &platform)
    };
    let all =
        index(&[for_platform("no", IMAGE, "linux/arm64"), for_platform(&manifest, IMAGE, "linux/amd64")]);
    manifests.add("all", INDEX, &all);
    let mut nested = all.clone();
    for depth in 1..5 {
        nested = index(&[for_platform(&nested, INDEX, "linux/amd64")]);
        manifests.add(&format!("nested{depth}"), INDEX, &nested);
    }
    // A loop, by a registry that answers with something else than what was asked for.
    let looping = index(&[for_platform("loop", INDEX, "linux/amd64")]);
    manifests.add("loop", INDEX, &looping);
    manifests.add_as(&digest(b"loop"), &looping);
    manifests.add("arm", INDEX, &index(&[for_platform(&manifest, IMAGE, "linux/arm64")]));
    server.fail(move |request| manifests.answer(request));
    read(&open(&resolve(&server, ":all").unwrap(), 5000).unwrap(), 0, LEN).unwrap();
    resolve(&server, ":nested1").unwrap();
    resolve(&server, ":nested2").unwrap();
    assert!(refused(resolve(&server, ":nested3")).contains("more than 3 deep"));
    assert!(refused(resolve(&server, ":loop")).contains("has another digest"));
    assert!(refused(resolve(&server, ":arm")).contains("one of: linux/arm64"));
}

/// A registry that wants tokens of a server; the number of the present token.
fn with_tokens(login: Option<&'static str>) -> (Server, Server, Arc<AtomicU64>) {
    let (server, manifests, _) = registry();
    let (tokens, current) = (Server::start(), Arc::new(AtomicU64::new(1)));
    let shown = current.clone();
    tokens.fail(move |request| {
        let query = "?scope=repository%3Ame%2Fapp%3Apull&service=reg.test";
        assert_eq!(request.path, format!("/token{query}"));
        match request.headers.get("authorization").map(String::as_str) == login {
            true => token_answer(shown.load(Ordering::SeqCst), 300),
            false => Fault::Status(401, None),
        }
    });
    let challenge = format!(
        "Bearer realm=\"{}\",service=\"reg.test\",scope=\"repository:{NAME}:pull\"",
        tokens.url("/token")
    );
    let valid = current.clone();
    server.fail(move |request| {
        let wanted = format!("Bearer token-{}", valid.load(Ordering::SeqCst));
        unauthorized(request, &wanted, &challenge).unwrap_or_else(|| manifests.answer(request))
    });
    (server, tokens, current)
}

#[test]
fn tokens_are_fetched_once_and_again_when_they_are_refused_in_the_middle_of_reading() {
    let (server, tokens, current) = with_tokens(None);
    let image = resolve(&server, ":1").unwrap();
    let source = open(&image, 10_000).unwrap();
    read(&source, 0, LEN).unwrap();
    assert_eq!(tokens.take_log().len(), 1);
    for n in 2..6 {
        current.store(n, Ordering::SeqCst);
        read_at_once(&source);
        assert_eq!(tokens.take_log().len(), 1, "renewal {n}");
    }
    // The server of tokens is away for a while.
    current.store(6, Ordering::SeqCst);
    let start = Instant::now();
    tokens.fail(move |_| match start.elapsed() < Duration::from_millis(700) {
        true => Fault::Status(503, None),
        false => token_answer(6, 300),
    });
    read(&source, 0, LEN).unwrap();
    // It is away for longer than a read may take.
    tokens.fail(|_| Fault::Hangup);
    let source = open(&image, 700).unwrap();
    current.store(7, Ordering::SeqCst);
    let start = Instant::now();
    assert!(matches!(read(&source, 5 * BLOCK, 1), Err(BackingError::Unreachable { .. })));
    assert!(start.elapsed() < Duration::from_millis(1700));
    // It gives tokens that the registry does not take.
    tokens.fail(|_| token_answer(0, 300));
    let error = read(&source, 5 * BLOCK, 1).unwrap_err().to_string();
    assert!(error.contains("status 401") && error.contains("docker login"), "{error}");
}

#[test]
fn logins_are_used_and_stay_with_their_servers() {
    let login = Login::Password { user: "me".into(), password: Secret("s3".into()) };
    let (server, tokens, _) = with_tokens(Some("Basic bWU6czM="));
    let anonymous = resolve(&server, ":1").err().unwrap();
    assert!(anonymous.is_denied() && anonymous.to_string().contains("there is no login"), "{anonymous}");
    let image = resolve_as(&server, ":1", Some(&login)).unwrap();
    // The registry never sees the login, and the store behind it no token.
    let store = Server::start();
    store.put("/blob", Object::new(contents(0), "x"));
    let target = store.url("/blob?signature=1");
    server.take_log();
    server.fail(move |_| Fault::Redirect(target.clone()));
    read(&open(&image, 5000).unwrap(), 0, LEN).unwrap();
    let seen = |server: &Server| -> Vec<_> {
        server.take_log().iter().filter_map(|request| request.headers.get("authorization").cloned()).collect()
    };
    assert!(seen(&server).iter().all(|header| header == "Bearer token-1") && seen(&store).is_empty());
    assert!(seen(&tokens).iter().all(|header| header == "Basic bWU6czM="));
    let wrong = Login::Password { user: "me".into(), password: Secret("hidden".into()) };
    let (server, _tokens, _) = with_tokens(Some("Basic bWU6czM="));
    let text = refused(resolve_as(&server, ":1", Some(&wrong)));
    assert!(text.contains("the login for '127.0.0.1") && !text.contains("hidden"), "{text}");
}

#[test]
fn passwords_and_identity_tokens_are_used_as_the_registry_wants() {
    let login = Login::Password { user: "me".into(), password: Secret("s3".into()) };
    let (server, manifests, _) = registry();
    let answers = manifests.clone();
    server.fail(move |request| {
        let refused = unauthorized(request, "Basic bWU6czM=", "Basic realm=\"x\"");
        refused.unwrap_or_else(|| answers.answer(request))
    });
    let image = resolve_as(&server, ":1", Some(&login)).unwrap();
    read(&open(&image, 5000).unwrap(), 0, LEN).unwrap();
    let wrong = Login::Password { user: "me".into(), password: Secret("x".into()) };
    server.take_log();
    assert!(resolve_as(&server, ":1", Some(&wrong)).err().unwrap().is_denied());
    assert_eq!(server.take_log().len(), 2, "without and with the login, and not again");
    assert!(resolve(&server, ":1").err().unwrap().is_denied());

    let tokens = Server::start();
    tokens.fail(|request| {
        let form = "scope=repository%3Ame%2Fapp%3Apull&service=a%26b&grant_type=refresh_token&client_id=pagefold&\
            refresh_token=i%2B1";
        assert_eq!((request.method.as_str(), request.body.as_str()), ("POST", form));
        Fault::Answer(200, String::new(), b"{\"access_token\": \"t\"}".to_vec())
    });
    let challenge = format!("Bearer realm=\"{}\",service=\"a&b\"", tokens.url("/token"));
    server.fail(move |request| {
        unauthorized(request, "Bearer t", &challenge).unwrap_or_else(|| manifests.answer(request))
    });
    let login = Login::IdentityToken(Secret("i+1".into()));
    read(&open(&resolve_as(&server, ":1", Some(&login)).unwrap(), 5000).unwrap(), 0, LEN).unwrap();
}

#[test]
fn registries_that_mislead_are_refused() {
    let (server, ..) = registry();
    let login = Login::Password { user: "me".into(), password: Secret("hidden".into()) };
    for (challenge, says) in [
        ("Bearer realm=\"http://192.0.2.1/token\"", "is not asked by https://"),
        ("Bearer realm=\"file:///etc/passwd\"", "has no URL"),
        ("Bearer realm=\"https://me:x@host/\"", "has no URL"),
        ("Bearer", "status 401"),
        ("Negotiate", "status 401"),
    ] {
        server.fail(move |request| unauthorized(request, "", challenge).unwrap());
        let text = refused(resolve_as(&server, ":1", Some(&login)));
        assert!(text.contains(says) && !text.contains("hidden"), "{challenge}: {text}");
    }
    let long = "x".repeat(2 << 20);
    for body in ["", "{}", "{\"token\": \"\"}", "{\"token\": \"a\\r\\nX: y\"}", "{\"token\": 1}", &long] {
        let tokens = Server::start();
        let body = body.to_string();
        tokens.fail(move |_| Fault::Answer(200, String::new(), body.clone().into_bytes()));
        let challenge = format!("Bearer realm=\"{}\"", tokens.url("/"));
        server.fail(move |request| unauthorized(request, "", &challenge).unwrap());
        let text = refused(resolve(&server, ":1"));
        assert!(text.contains("sends no JSON with a token") || text.contains("longer than"), "{text}");
    }
    server.fail(|_| Fault::Redirect("/again".into()));
    assert!(refused(resolve(&server, ":1")).contains("there are more than 5"));
}

#[test]
fn a_host_that_the_registry_redirects_to_does_not_say_who_gets_the_login() {
    let (server, ..) = registry();
    let (elsewhere, tokens) = (Server::start(), Server::start());
    tokens.fail(|_| token_answer(1, 300));
    let challenge = format!("Bearer realm=\"{}\"", tokens.url("/token"));
    elsewhere.fail(move |request| unauthorized(request, "", &challenge).unwrap());
    let target = elsewhere.url("/manifest");
    server.fail(move |_| Fault::Redirect(target.clone()));
    let login = Login::Password { user: "me".into(), password: Secret("hidden".into()) };
    assert!(resolve_as(&server, ":1", Some(&login)).err().unwrap().is_denied());
    assert!(tokens.take_log().is_empty() && elsewhere.take_log().len() == 1);
}

/// Faults of connections at each request of a resolution and a read.
#[test]
fn transient_faults_of_registries_are_not_seen() {
    let (server, manifests, _) = registry();
    for fault in
        [Fault::Hangup, Fault::Status(503, None), Fault::Cut(100), Fault::Status(429, Some("0".into()))]
    {
        for n in 0..3 {
            let (answers, fault) = (manifests.clone(), fault.clone());
            server.fail(move |request| match request.number == n {
                true if matches!(fault, Fault::Cut(_)) && request.path.contains("/manifests/") => {
                    Fault::Hangup
                }
                true => fault.clone(),
                false => answers.answer(request),
            });
            let source = open(&resolve(&server, ":1").unwrap(), 10_000).unwrap();
            read(&source, 0, LEN).unwrap();
        }
    }
}

#[test]
fn a_tree_is_a_second_blob() {
    let (server, mut manifests, _) = registry();
    let (blob, tree) = (contents(0), vec![7; 8192]);
    put_blob(&server, &tree);
    let annotations = ", \"annotations\": {\"io.github.pagefold.fsverity.digest\": \"sha256:aa\"}";
    let layers = [
        descriptor(EROFS, &blob, annotations),
        descriptor("application/vnd.pagefold.fsverity.tree.v1", &tree, ""),
    ];
    manifests.add("verified", IMAGE, &image(&layers));
    server.fail(move |request| manifests.answer(request));
    let image = resolve(&server, ":verified").unwrap();
    let found = image.layer().tree.clone().unwrap();
    assert_eq!((found.digest.as_str(), found.salt.as_str()), ("sha256:aa", ""));
    let source = image.open_tree(&options(5000)).unwrap().unwrap();
    let mut bytes = vec![0; 8192];
    source.read_at(0, &mut bytes).unwrap();
    assert!(bytes == tree);
    assert!(resolve(&server, ":1").unwrap().open_tree(&options(5000)).is_none());
}

/// A server that sends wrong bytes to readers, and the right ones when it is asked again.
#[test]
fn a_range_that_is_read_again_has_the_same_bytes() {
    for is_remembered in [true, false] {
        let ((server, ..), blob) = (registry(), contents(0));
        let path = format!("/v2/{NAME}/blobs/{}", digest(&blob));
        let put = |bytes: Vec<u8>| {
            server.put(&path, Object { bytes: Arc::new(bytes), etag: None, last_modified: None });
        };
        let mut other = blob.clone();
        other[3 * BLOCK as usize] ^= 1;
        put(other.clone());
        let source = open(&resolve(&server, ":1").unwrap(), 5000).unwrap();
        if is_remembered {
            source.remember();
        }
        let mut bytes = vec![0; blob.len()];
        source.read_at(0, &mut bytes).unwrap();
        assert!(bytes == other);
        put(blob.clone());
        let verified = WholeHash::default().verify_rest(&source, &mut |_| ControlFlow::Continue(()));
        match verified {
            Err(error) if is_remembered => assert!(error.to_string().contains("other bytes"), "{error}"),
            verified => assert_eq!(verified.unwrap(), digest(&blob), "{is_remembered}"),
        }
    }
}

#[test]
fn a_blob_that_comes_whole_is_compared_with_its_digest() {
    for len in [0, 1, BLOCK as usize, BLOCK as usize + 1] {
        let (server, mut manifests) = (Server::start(), Manifests::default());
        let blob = contents(0)[..len].to_vec();
        manifests.add("1", IMAGE, &image(&[descriptor(EROFS, &blob, "")]));
        server.fail(move |request| manifests.answer(request));
        put_blob(&server, &blob);
        let image = resolve(&server, ":1").unwrap();
        assert_eq!(open(&image, 5000).unwrap().len_bytes(), len as u64);
        let mut other = blob.clone();
        let Some(last) = other.last_mut() else { continue };
        *last ^= 1;
        let path = format!("/v2/{NAME}/blobs/{}", digest(&blob));
        server.put(&path, Object { bytes: Arc::new(other), etag: None, last_modified: None });
        let error = open(&image, 5000).err().map(|e| e.to_string());
        let is_whole = len as u64 <= BLOCK;
        assert_eq!(error.is_some_and(|text| text.contains("has another digest")), is_whole, "{len}");
    }
}

/// The blobs and manifests that a push has sent.
#[derive(Default)]
struct Store {
    blobs: HashMap<String, Vec<u8>>,
    manifests: Vec<(String, String)>,
    requests: usize,
}

impl Store {
    fn answer(&mut self, request: &Request) -> Fault {
        self.requests += 1;
        let base = format!("/v2/{NAME}/");
        let path = request.path.strip_prefix(&base).unwrap();
        let status = |status| Fault::Answer(status, String::new(), Vec::new());
        match (&*request.method, path) {
            ("HEAD", path) => {
                let there = self.blobs.contains_key(path.strip_prefix("blobs/").unwrap());
                status(if there { 200 } else { 404 })
            }
            ("POST", "blobs/uploads/") => {
                Fault::Answer(202, format!("Location: {base}blobs/uploads/7?state=x\r\n"), Vec::new())
            }
            ("PUT", path) if path.starts_with("blobs/uploads/7?state=x&digest=") => {
                let wanted = path.rsplit('=').next().unwrap().replace("%3A", ":");
                assert_eq!(digest(&request.body_bytes), wanted);
                self.blobs.insert(wanted, request.body_bytes.clone());
                status(201)
            }
            ("PUT", path) => {
                let target = path.strip_prefix("manifests/").unwrap();
                assert_eq!(request.headers["content-type"], IMAGE);
                self.manifests.push((target.to_string(), request.body.clone()));
                status(201)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn upload(bytes: &[u8]) -> Upload {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Upload { file, len_bytes: bytes.len() as u64, digest: digest(bytes) }
}

fn push(server: &Server, timeout: Duration) -> Result<Pushed, RemoteError> {
    let reference = OciReference::parse(&format!("oci://{}/{NAME}:1", server.address)).unwrap();
    let tree = ("sha256:00".to_string(), "11".to_string(), upload(b"tree"));
    let image = ImageUpload {
        image: upload(&contents(0)),
        tree: Some(tree),
        list: Some(upload(b"/bin/a\n")),
        platform: "linux/arm64/v8".parse().unwrap(),
        annotations: [("a".to_string(), "b".to_string())].into(),
    };
    let login = Login::Password { user: "me".into(), password: Secret("hidden".into()) };
    oci::push(&reference, Some(&login), image, timeout)
}

#[test]
fn a_push_sends_what_the_registry_does_not_have_and_the_manifest_last() {
    let (server, tokens) = (Server::start(), Server::start());
    let store = Arc::new(Mutex::new(Store::default()));
    tokens.fail(|request| match request.path.contains("pull%2Cpush") {
        true => token_answer(2, 300),
        false => token_answer(1, 300),
    });
    let challenge = |scope: &str| {
        format!(
            "Bearer realm=\"{}\",service=\"test\",scope=\"repository:{NAME}:{scope}\"",
            tokens.url("/token")
        )
    };
    let (pull, both) = (challenge("pull"), challenge("pull,push"));
    let shown = store.clone();
    let mut is_broken = true;
    server.fail(move |request| {
        if request.method == "GET" {
            return Fault::Status(404, None);
        }
        let writes = request.method != "HEAD";
        let is_allowed = ["Bearer token-1", "Bearer token-2"];
        let found = request.headers.get("authorization").map(String::as_str).unwrap_or_default();
        if !is_allowed[usize::from(writes)..].contains(&found) {
            return unauthorized(request, "", if writes { &both } else { &pull }).unwrap();
        }
        // The first upload breaks off, and is repeated as a whole.
        if request.method == "PUT" && std::mem::take(&mut is_broken) {
            return Fault::Hangup;
        }
        shown.lock().unwrap().answer(request)
    });
    let pushed = push(&server, Duration::from_secs(10)).unwrap();
    assert_eq!((pushed.sent, pushed.present), (5, 0));
    {
        let store = store.lock().unwrap();
        assert!(store.blobs.values().any(|blob| *blob == contents(0)));
        let [(tag, manifest), (referrer, list)] = &store.manifests[..] else {
            panic!("{:?}", store.manifests)
        };
        assert_eq!((tag.as_str(), digest(manifest.as_bytes())), ("1", pushed.manifest_digest.clone()));
        assert_eq!(*referrer, digest(list.as_bytes()));
        let [manifest, list]: [serde_json::Value; 2] =
            [manifest, list].map(|text| serde_json::from_str(text).unwrap());
        let config = &store.blobs[manifest["config"]["digest"].as_str().unwrap()];
        let config: serde_json::Value = serde_json::from_slice(config).unwrap();
        assert_eq!(config["os.features"], serde_json::json!(["erofs"]));
        assert_eq!((&config["architecture"], &config["variant"]), (&"arm64".into(), &"v8".into()));
        assert_eq!(config["rootfs"]["diff_ids"], serde_json::json!([digest(&contents(0))]));
        assert_eq!(manifest["layers"][0]["mediaType"], EROFS);
        assert_eq!(manifest["layers"][0]["annotations"]["io.github.pagefold.fsverity.digest"], "sha256:00");
        assert_eq!(manifest["annotations"]["a"], "b");
        assert_eq!(list["subject"]["digest"], pushed.manifest_digest.as_str());
    }
    // The first token is for all of a push already.
    assert!(tokens.take_log().iter().all(|request| request.path.contains("pull%2Cpush")));
    let again = push(&server, Duration::from_secs(10)).unwrap();
    assert_eq!((again.sent, again.present), (0, 5));
    let _ = server.take_log();
    server.fail(|request| match request.method.as_str() {
        "HEAD" => Fault::Status(404, None),
        _ => Fault::Answer(405, String::new(), b"{\"errors\": [{\"message\": \"read only\"}]}".to_vec()),
    });
    let error = push(&server, Duration::from_secs(10)).unwrap_err().to_string();
    assert!(error.contains("takes no images") && error.contains("read"), "{error}");
    server.fail(|_| Fault::Status(403, None));
    let error = push(&server, Duration::from_secs(10)).unwrap_err().to_string();
    assert!(error.contains("status 403"), "{error}");
}

/// Registries limit manifests and tokens, not blobs only.
#[test]
fn a_pause_that_a_registry_wants_is_kept_for_manifests_and_tokens() {
    for path in ["/manifests/", "/token"] {
        let (server, manifests, _) = registry();
        let realm = server.url("/token");
        let answer = move |request: &Request| match request.path.starts_with("/token") {
            true => token_answer(1, 3600),
            false => {
                let challenge = format!("Bearer realm=\"{realm}\"");
                let refused = unauthorized(request, "Bearer token-1", &challenge);
                refused.unwrap_or_else(|| manifests.answer(request))
            }
        };
        let limited = |wanted: &str, left: Arc<AtomicU64>, answer: Box<dyn Fn(&Request) -> Fault + Send>| {
            let wanted = wanted.to_string();
            server.fail(move |request| {
                let is_limited = request.path.contains(path)
                    && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
                match is_limited {
                    true => Fault::Answer(429, format!("Retry-After: {wanted}\r\n"), Vec::new()),
                    false => answer(request),
                }
            });
        };
        for wanted in ["1", "Thu, 01 Jan 2015 00:00:00 GMT"] {
            limited(wanted, Arc::new(AtomicU64::new(1)), Box::new(answer.clone()));
            resolve(&server, ":1").unwrap();
        }
        server.take_log();
        limited("3600", Arc::new(AtomicU64::new(u64::MAX)), Box::new(answer.clone()));
        let error = refused(resolve(&server, ":1"));
        assert!(error.contains("3600 s") && error.contains("limits the number of requests"), "{error}");
        let log = server.take_log();
        assert_eq!(log.iter().filter(|request| request.path.contains(path)).count(), 1, "{log:?}");
    }
}

#[test]
fn a_source_is_quiet_while_its_server_wants_no_requests() {
    let (server, manifests, _) = registry();
    let source = open(&resolve(&server, ":1").unwrap(), 10_000).unwrap();
    server.take_log();
    server.fail(|_| Fault::Status(503, Some("3600".into())));
    for block in [3, 5, 7] {
        let error = read(&source, block * BLOCK, 1).unwrap_err().to_string();
        assert!(error.contains("to be left alone") && error.contains("503"), "{error}");
    }
    assert_eq!(server.take_log().len(), 1);
    server.fail(move |request| manifests.answer(request));
    let source = open(&resolve(&server, ":1").unwrap(), 10_000).unwrap();
    read(&source, 3 * BLOCK, 1).unwrap();
}

/// The requests of a push by their methods, when all but the first are answered like this.
fn pushed_against(answer: impl Fn(&Request) -> Fault + Send + 'static) -> (String, Vec<String>) {
    let server = Server::start();
    server.fail(move |request| match request.method.as_str() {
        "GET" | "HEAD" => Fault::Status(404, None),
        _ => answer(request),
    });
    let error = push(&server, Duration::from_secs(10)).unwrap_err().to_string();
    let methods = server.take_log().into_iter().map(|request| request.method);
    (error, methods.filter(|method| method.starts_with('P')).collect())
}

#[test]
fn a_blob_is_sent_a_few_times_and_a_refusal_is_judged_as_everywhere() {
    let place = || Fault::Answer(202, "Location: 7\r\n".into(), Vec::new());
    let (error, methods) = pushed_against(move |request| match request.method.as_str() {
        "POST" => place(),
        _ => Fault::Hangup,
    });
    assert!(error.contains("client_max_body_size") && error.contains("4 attempts"), "{error}");
    assert_eq!(methods, ["POST", "PUT"].repeat(4));
    let (error, methods) = pushed_against(|_| Fault::Status(429, Some("3600".into())));
    assert!(error.contains("for 3600 s"), "{error}");
    assert_eq!(methods, ["POST"]);
    let (error, methods) = pushed_against(|_| Fault::Status(501, None));
    assert!(error.contains("status 501"), "{error}");
    assert_eq!(methods, ["POST"]);
}

/// A registry without range requests, and with a blob of another length.
#[test]
fn a_blob_of_another_length_is_not_downloaded() {
    let (server, manifests, _) = registry();
    let path = format!("/v2/{NAME}/blobs/{}", digest(&contents(0)));
    server.fail(move |request| match manifests.answer(request) {
        Fault::None => Fault::Whole,
        answer => answer,
    });
    let folder = tempfile::tempdir().unwrap();
    let image = resolve(&server, ":1").unwrap();
    let open = || {
        let spool = Some(Arc::new(Spool::create(folder.path(), |_| panic!("a download begins"))));
        image.open(&pagefold_remote::Options { spool, ..options(5000) })
    };
    for len in [LEN - 1, LEN + 1] {
        server.put(&path, Object::new(vec![1; len as usize], "other"));
        let error = open().err().unwrap();
        assert!(error.to_string().contains("another length than its manifest names"), "{error}");
    }
}
