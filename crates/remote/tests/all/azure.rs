//! Blobs of Azure's storage, on a server that computes the signature of each request from what it received.

use crate::server::{Fault, Object, Request, Server};
use crate::{BLOCK, LEN, contents, options, read};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pagefold_remote::azure::{AzureCredentials, AzureSettings, MachineHeader, Proof};
use pagefold_remote::stores::{self, ObjectName, StoreSettings};
use pagefold_remote::{Options, RemoteError, RemoteSource, Secret};
use ring::hmac;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const KEY: &[u8] = b"the key of the account";
const BLOB: &str = "az://images/a b/app.erofs";
const PATH: &str = "/images/a%20b/app.erofs";

/// Opens an object with these settings of its store.
pub fn open_object(
    name: &ObjectName,
    settings: &AzureSettings,
    options: &Options,
) -> Result<RemoteSource, RemoteError> {
    let settings = StoreSettings { azure: Some(settings.clone()), ..StoreSettings::default() };
    stores::open(name, &settings, options)
}

fn settings(endpoint: &str, credentials: AzureCredentials) -> AzureSettings {
    AzureSettings { account: "account".into(), endpoint: endpoint.trim_end_matches('/').into(), credentials }
}

fn key(key: &[u8]) -> AzureCredentials {
    AzureCredentials::Key { key: Secret(STANDARD.encode(key)), origin: "a test".into() }
}

fn open(server: &Server, credentials: AzureCredentials) -> Result<RemoteSource, RemoteError> {
    open_object(&ObjectName::parse(BLOB).unwrap(), &settings(&server.url(""), credentials), &options(5000))
}

/// A refusal as the store writes it.
fn refusal(status: u16, code: &str) -> Fault {
    let body =
        format!("\u{feff}<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message></Error>");
    Fault::Answer(status, "Content-Type: application/xml\r\n".into(), body.into_bytes())
}

/// Judges the signature of an account's key: all parts of it are those of the request as it came.
fn judge(request: &Request) -> Fault {
    let header = |name: &str| request.headers.get(name).map_or("", String::as_str);
    let Some(found) = header("authorization").strip_prefix("SharedKey account:") else {
        return refusal(409, "PublicAccessNotPermitted");
    };
    let mut text = format!("{}\n", request.method);
    for name in [
        "content-encoding",
        "content-language",
        "content-length",
        "content-md5",
        "content-type",
        "date",
        "if-modified-since",
        "if-match",
        "if-none-match",
        "if-unmodified-since",
        "range",
    ] {
        text += &format!("{}\n", header(name));
    }
    let mut own: Vec<_> = request.headers.iter().filter(|(name, _)| name.starts_with("x-ms-")).collect();
    own.sort();
    own.iter().for_each(|(name, value)| text += &format!("{name}:{value}\n"));
    text += &format!("/account{}", request.path);
    match STANDARD.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, KEY), text.as_bytes())) == found {
        true => Fault::None,
        false => refusal(403, "AuthenticationFailed"),
    }
}

fn store() -> Server {
    let server = Server::start();
    server.put(PATH, Object::new(contents(0), "0x8D4BCC2E4835CD0"));
    server
}

#[test]
fn each_request_is_signed_with_its_range_and_condition() {
    let server = store();
    server.fail(judge);
    let source = open(&server, key(KEY)).unwrap();
    read(&source, 0, LEN).unwrap();
    let log = server.take_log();
    assert!(log.len() > 1 && log[1..].iter().all(|r| r.headers["if-match"] == "\"0x8D4BCC2E4835CD0\""));
    let time = &log[0].headers["x-ms-date"];
    let date =
        std::process::Command::new("date").args(["-u", "+%a, %d %b %Y"]).env("LC_ALL", "C").output().unwrap();
    assert!(time.starts_with(String::from_utf8(date.stdout).unwrap().trim()), "{time}");
    // Without an entity tag, the time of the change is the condition, and signed too.
    let dated = Object {
        bytes: Arc::new(contents(0)),
        etag: None,
        last_modified: Some("Fri, 26 Jun 2015 23:39:12 GMT".into()),
    };
    server.put(PATH, dated);
    read(&open(&server, key(KEY)).unwrap(), 0, LEN).unwrap();
    // Another version is an error.
    let source = open(&server, key(KEY)).unwrap();
    server.put(PATH, Object::new(contents(1), "other"));
    assert!(read(&source, 5 * BLOCK, 10).is_err());
}

#[test]
fn refusals_say_with_what_a_request_was_sent() {
    let server = store();
    server.fail(judge);
    let error = |credentials| open(&server, credentials).err().unwrap();
    let wrong = error(key(b"another key"));
    assert!(wrong.is_denied(), "{wrong}");
    assert!(
        wrong
            .to_string()
            .contains("(AuthenticationFailed); the request was sent with the account's key of a test")
    );
    let skipped = error(AzureCredentials::Skipped);
    assert!(skipped.is_denied(), "{skipped}");
    assert!(
        skipped
            .to_string()
            .contains("409 (PublicAccessNotPermitted); the request showed no credentials, because of")
    );
    server.fail(|_| refusal(404, "BlobNotFound"));
    assert!(error(key(KEY)).is_missing());
    assert!(error(AzureCredentials::Skipped).to_string().contains("or it is not public"));
    // A public container needs nothing.
    server.fail(|request| {
        assert!(!request.headers.contains_key("authorization"));
        Fault::None
    });
    read(&open(&server, AzureCredentials::Skipped).unwrap(), 0, LEN).unwrap();
}

#[test]
fn a_shared_access_signature_is_in_the_query_and_in_no_message() {
    let server = store();
    server.fail(|request| match request.path.ends_with("?sv=2021-08-06&sig=hidden%3D") {
        true => Fault::None,
        false => refusal(403, "AuthenticationFailed"),
    });
    let sas = |query: &str| AzureCredentials::Sas { query: Secret(query.into()), origin: "a test".into() };
    let source = open(&server, sas("sv=2021-08-06&sig=hidden%3D")).unwrap();
    read(&source, 0, LEN).unwrap();
    use pagefold_backing::ByteSource;
    assert!(!source.describe().contains("hidden"));
    let error = open(&server, sas("sig=hidden-wrong")).err().unwrap().to_string();
    assert!(error.contains("the shared access signature of a test") && !error.contains("hidden"), "{error}");
    server.fail(|_| Fault::Hangup);
    let read = read(&source, 0, LEN);
    assert!(read.is_ok(), "it is in memory");
    let location = ObjectName::parse(BLOB).unwrap();
    let settings = settings(&server.url(""), sas("sig=hidden"));
    let error = open_object(&location, &settings, &options(1000)).err().unwrap().to_string();
    assert!(!error.contains("hidden"), "{error}");
}

/// The store takes the token of the number that counts; the server of tokens gives that.
fn with_tokens(valid: &Arc<AtomicU64>) -> Server {
    let server = store();
    let valid = valid.clone();
    server.fail(move |request| {
        let wanted = format!("Bearer token-{}", valid.load(Ordering::SeqCst));
        assert!(request.headers.contains_key("x-ms-version"));
        match request.headers.get("authorization") == Some(&wanted) {
            true => Fault::None,
            false => Fault::Answer(401, "WWW-Authenticate: Bearer x=y\r\n".into(), Vec::new()),
        }
    });
    server
}

fn answer(n: u64) -> Fault {
    // Services of machines write the number as a text.
    let body =
        format!("{{\"token_type\": \"Bearer\", \"expires_in\": \"3599\", \"access_token\": \"token-{n}\"}}");
    Fault::Answer(200, String::new(), body.into_bytes())
}

#[test]
fn tokens_of_applications_and_machines_are_renewed_when_the_store_refuses_them() {
    let valid = Arc::new(AtomicU64::new(1));
    let (server, tokens) = (with_tokens(&valid), Server::start());
    let shown = valid.clone();
    tokens.fail(move |request| {
        let is_form = request.method == "POST" && request.path == "/tenant/oauth2/v2.0/token";
        let has = |field: &str| request.body.split('&').any(|found| found == field);
        let is_application = has("grant_type=client_credentials")
            && has("client_id=app")
            && has("scope=https%3A%2F%2Fstorage.azure.com%2F.default")
            && (has("client_secret=hidden%26")
                || has("client_assertion=of.file")
                    && has("client_assertion_type=urn%3Aietf%3Aparams%3Aoauth%3Aclient-assertion-type%3Ajwt-bearer"));
        let is_machine = request.method == "GET"
            && (request.path == "/instance?x=y" && request.headers.get("metadata").is_some_and(|v| v == "true")
                || request.path == "/app?x=y"
                    && request.headers.get("x-identity-header").is_some_and(|v| v == "hidden"));
        match is_form && is_application || is_machine {
            true => answer(shown.load(Ordering::SeqCst)),
            false => Fault::Answer(400, String::new(), b"{\"error\": \"invalid_request\"}".to_vec()),
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "of.file\n").unwrap();
    let application = |proof| AzureCredentials::Application {
        url: tokens.url("/tenant/oauth2/v2.0/token"),
        client_id: "app".into(),
        proof,
    };
    let machine = |path: &str, header, value: &str| AzureCredentials::Machine {
        url: tokens.url(path),
        header: (header, Secret(value.into())),
    };
    for credentials in [
        application(Proof::Secret(Secret("hidden&".into()))),
        application(Proof::File(file)),
        machine("/instance?x=y", MachineHeader::Metadata, "true"),
        machine("/app?x=y", MachineHeader::Identity, "hidden"),
    ] {
        tokens.take_log();
        let source = open(&server, credentials).unwrap();
        valid.fetch_add(1, Ordering::SeqCst);
        read(&source, 3 * BLOCK, LEN - 3 * BLOCK).unwrap();
        assert_eq!(tokens.take_log().len(), 2, "one token at first, and one when it was refused");
    }
    let refused = open(&server, application(Proof::Secret(Secret("hidden-wrong".into())))).err().unwrap();
    assert!(refused.is_denied() && refused.to_string().contains("400 (invalid_request)"), "{refused}");
    assert!(!refused.to_string().contains("hidden"));
    // A machine without an identity shows nothing, and is not asked for long.
    let nothing = open(&server, machine("/other", MachineHeader::Metadata, "true")).err().unwrap();
    assert!(
        nothing.to_string().contains("because none were found: set AZURE_STORAGE_CONNECTION_STRING"),
        "{nothing}"
    );
    // A token that stays refused ends the read.
    valid.store(100, Ordering::SeqCst);
    tokens.fail(|_| answer(0));
    let refused = open(&server, machine("/instance?x=y", MachineHeader::Metadata, "true")).err().unwrap();
    assert!(refused.to_string().contains("a token of the machine's identity"), "{refused}");
}
