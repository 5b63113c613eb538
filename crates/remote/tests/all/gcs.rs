//! Objects of Google's storage: tokens for service accounts, users and machines, on a server that verifies signatures.

use crate::server::{Fault, Object, Request, Server};
use crate::{BLOCK, LEN, contents, options, read};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use pagefold_remote::gcs::{GcsCredentials, GcsSettings};
use pagefold_remote::stores::{self, ObjectName, StoreSettings};
use pagefold_remote::{Options, RemoteError, RemoteSource, Secret};
use ring::signature::{KeyPair, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The key of RFC 7515, A.2.
const KEY: &str = include_str!("../../src/gcs/testdata/rfc7515.pem");
const PATH: &str = "/images/a%20b/app.erofs";

/// Opens an object with these settings of its store.
fn open_object(
    name: &ObjectName,
    settings: &GcsSettings,
    options: &Options,
) -> Result<RemoteSource, RemoteError> {
    let settings = StoreSettings { gcs: Some(settings.clone()), ..StoreSettings::default() };
    stores::open(name, &settings, options)
}

fn open(server: &Server, credentials: GcsCredentials) -> Result<RemoteSource, RemoteError> {
    let location = ObjectName::parse("gs://images/a b/app.erofs").unwrap();
    let endpoint = server.url("").trim_end_matches('/').to_string();
    let settings = GcsSettings { endpoint, payer: Some("me".into()), credentials };
    open_object(&location, &settings, &options(5000))
}

fn account(token_url: String) -> GcsCredentials {
    let (email, key_id, private_key) = ("reader@project".into(), "k1".into(), Secret(KEY.into()));
    GcsCredentials::ServiceAccount { email, key_id, private_key, token_url }
}

fn user(token_url: String, refresh: &str) -> GcsCredentials {
    GcsCredentials::User {
        client_id: "program".into(),
        client_secret: Secret("hidden".into()),
        refresh_token: Secret(refresh.into()),
        token_url,
    }
}

/// A store that takes the token of the number that counts.
fn store(valid: &Arc<AtomicU64>) -> Server {
    let server = Server::start();
    server.put(PATH, Object::new(contents(0), "d41d8cd98f00b204e9800998ecf8427e"));
    let valid = valid.clone();
    server.fail(move |request| {
        let body = b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>CODE</Code></Error>";
        let body = |code: &str| String::from_utf8(body.to_vec()).unwrap().replace("CODE", code).into_bytes();
        match request.headers.get("authorization") {
            // A project that is charged is for those who have shown who they are.
            None if request.headers.contains_key("x-goog-user-project") => {
                Fault::Answer(400, String::new(), body("UserProjectAccessDenied"))
            }
            Some(_) if request.headers.get("x-goog-user-project").is_none_or(|project| project != "me") => {
                Fault::Answer(400, String::new(), body("UserProjectMissing"))
            }
            Some(found) if *found == format!("Bearer token-{}", valid.load(Ordering::SeqCst)) => Fault::None,
            Some(_) => Fault::Answer(401, String::new(), body("AuthenticationRequired")),
            None => Fault::Answer(403, String::new(), body("AccessDenied")),
        }
    });
    server
}

/// Whether the form has claims of the service account for this server, signed by its key, and valid now.
fn is_signed(request: &Request, audience: &str) -> bool {
    let kind = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=";
    let Some(assertion) = request.body.strip_prefix(kind) else { return false };
    let der: String = KEY.lines().filter(|line| !line.starts_with('-')).collect();
    let pair = RsaKeyPair::from_pkcs8(&STANDARD.decode(der).unwrap()).unwrap();
    let (text, signature) = assertion.rsplit_once('.').unwrap();
    let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, pair.public_key().as_ref());
    if public.verify(text.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).unwrap()).is_err() {
        return false;
    }
    let claims = URL_SAFE_NO_PAD.decode(text.split_once('.').unwrap().1).unwrap();
    let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let (issued, expires) = (claims["iat"].as_u64().unwrap(), claims["exp"].as_u64().unwrap());
    assert!(claims["scope"].as_str().unwrap().ends_with("devstorage.read_only"));
    claims["iss"] == "reader@project" && claims["aud"] == audience && issued <= now && now < expires
}

#[test]
fn tokens_are_exchanged_and_renewed_when_the_store_refuses_them() {
    let valid = Arc::new(AtomicU64::new(1));
    let (server, tokens) = (store(&valid), Server::start());
    let (shown, audience) = (valid.clone(), tokens.url("/token"));
    tokens.fail(move |request| {
        let has = |field: &str| request.body.split('&').any(|found| found == field);
        let is_user = has("grant_type=refresh_token")
            && has("client_id=program")
            && has("client_secret=hidden")
            && has("refresh_token=1%2F%2Fabc");
        let is_machine = request.path == "/computeMetadata/token"
            && request.headers.get("metadata-flavor").is_some_and(|value| value == "Google");
        let n = shown.load(Ordering::SeqCst);
        match request.method.as_str() {
            "POST" if request.path == "/token" && (is_user || is_signed(request, &audience)) => answer(n),
            "GET" if is_machine => answer(n),
            _ => Fault::Answer(400, String::new(), b"{\"error\": \"invalid_grant\"}".to_vec()),
        }
    });
    for credentials in [
        account(tokens.url("/token")),
        user(tokens.url("/token"), "1//abc"),
        GcsCredentials::Machine { url: tokens.url("/computeMetadata/token") },
    ] {
        tokens.take_log();
        let source = open(&server, credentials).unwrap();
        valid.fetch_add(1, Ordering::SeqCst);
        read(&source, 3 * BLOCK, LEN - 3 * BLOCK).unwrap();
        assert_eq!(tokens.take_log().len(), 2, "one token at first, and one when it was refused");
    }
    let error = open(&server, user(tokens.url("/token"), "hidden")).err().unwrap();
    assert!(error.is_denied() && error.to_string().contains("(invalid_grant)"), "{error}");
    assert!(!error.to_string().contains("hidden"));
    let nothing = open(&server, GcsCredentials::Machine { url: tokens.url("/other") }).err().unwrap();
    assert!(nothing.is_denied(), "{nothing}");
    assert!(
        nothing
            .to_string()
            .contains("(AccessDenied); the request had no token, because no credentials were found")
    );
    let skipped = open(&server, GcsCredentials::Skipped).err().unwrap();
    assert!(skipped.to_string().contains("because of GOOGLE_SKIP_SIGNATURE"), "{skipped}");
    valid.store(100, Ordering::SeqCst);
    tokens.fail(|_| answer(0));
    let refused = open(&server, account(tokens.url("/token"))).err().unwrap();
    assert!(refused.to_string().contains("a token of the service account 'reader@project'"), "{refused}");
}

fn answer(n: u64) -> Fault {
    let body =
        format!("{{\"access_token\": \"token-{n}\", \"expires_in\": 3599, \"token_type\": \"Bearer\"}}");
    Fault::Answer(200, String::new(), body.into_bytes())
}

#[test]
fn public_objects_need_no_token() {
    let server = Server::start();
    server.put(PATH, Object::new(contents(0), "v0"));
    server.fail(|request| match request.path.as_str() {
        PATH => Fault::None,
        _ => Fault::Answer(404, String::new(), b"<Error><Code>NoSuchKey</Code></Error>".to_vec()),
    });
    read(&open(&server, GcsCredentials::Nothing).unwrap(), 0, LEN).unwrap();
    let settings = GcsSettings {
        payer: None,
        endpoint: server.url("").trim_end_matches('/').into(),
        credentials: GcsCredentials::Nothing,
    };
    let other = ObjectName::parse("gs://images/other").unwrap();
    let missing = open_object(&other, &settings, &options(5000)).err().unwrap();
    assert!(missing.is_missing() && missing.to_string().contains("(NoSuchKey)"), "{missing}");
}
