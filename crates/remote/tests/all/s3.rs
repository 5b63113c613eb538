//! Objects in buckets: signatures, keys that expire, regions, and what users read when access is denied.

use crate::s3_store::{StoreKey, credentials, judge, metadata, refusal, seconds_of};
use crate::server::{Fault, Object, Server};
use crate::{BLOCK, LEN, contents, options, read, read_at_once};
use pagefold_backing::{BackingError, ByteSource};
use pagefold_remote::s3::{KeySource, Keys, S3Settings};
use pagefold_remote::stores::{self, ObjectName, StoreSettings};
use pagefold_remote::{Options, RemoteError, RemoteSource, Secret};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const REGION: &str = "eu-west-3";
/// A key with characters that paths of URLs do not have.
const OBJECT: &str = "s3://images/a b/é+%41.erofs";
const PATH: &str = "/images/a%20b/%C3%A9%2B%2541.erofs";

/// Opens an object with these settings of its store.
pub fn open_object(
    name: &ObjectName,
    settings: &S3Settings,
    options: &Options,
) -> Result<RemoteSource, RemoteError> {
    let settings = StoreSettings { s3: Some(settings.clone()), ..StoreSettings::default() };
    stores::open(name, &settings, options)
}

fn store() -> Server {
    let server = Server::start();
    server.put(PATH, Object::new(contents(0), "v0"));
    server
}

fn settings(server: &Server, keys: KeySource) -> S3Settings {
    S3Settings {
        endpoint: Some(server.url("")),
        region: REGION.into(),
        is_path_style: true,
        pays_requests: false,
        keys,
    }
}

fn fixed(key: &StoreKey) -> KeySource {
    KeySource::Keys(Keys {
        key_id: key.id.clone(),
        secret_key: Secret(key.secret.clone()),
        token: key.token.clone().map(Secret),
        expires_unix_s: None,
        origin: "the environment".into(),
    })
}

fn open(server: &Server, keys: KeySource, timeout_ms: u64) -> Result<RemoteSource, RemoteError> {
    open_object(&ObjectName::parse(OBJECT).unwrap(), &settings(server, keys), &options(timeout_ms))
}

/// A server of metadata, whose role has the key of this number.
fn metadata_server(current: &Arc<AtomicU64>) -> Server {
    let (server, current) = (Server::start(), current.clone());
    server.fail(move |request| metadata(request, &StoreKey::numbered(current.load(Ordering::SeqCst)), 3600));
    server
}

/// Lets the store accept the key of this number only.
fn accept(server: &Server, current: &Arc<AtomicU64>) {
    let current = current.clone();
    server.fail(move |request| judge(request, &StoreKey::numbered(current.load(Ordering::SeqCst)), REGION));
}

#[test]
fn every_request_is_signed_and_of_one_version() {
    let server = store();
    for key in [StoreKey::numbered(0), StoreKey { token: None, ..StoreKey::numbered(1) }] {
        let known = key.clone();
        server.fail(move |request| judge(request, &known, REGION));
        let source = open(&server, fixed(&key), 10_000).unwrap();
        read(&source, 0, LEN).unwrap();
        let log = server.take_log();
        assert!(log.len() == 2 && log[1].headers["if-match"] == "\"v0\"", "{log:?}");
        assert_eq!(source.describe(), format!("{OBJECT}, by range requests"));
        server.put(PATH, Object::new(contents(1), "v1"));
        let small = Options { cache_bytes: 0, ..options(10_000) };
        let location = ObjectName::parse(OBJECT).unwrap();
        let replaced = open_object(&location, &settings(&server, fixed(&key)), &small).unwrap();
        server.put(PATH, Object::new(contents(0), "v0"));
        let error = read(&replaced, 5 * BLOCK, 1).unwrap_err();
        assert!(matches!(error, BackingError::Mismatch { .. }), "{error}");
        server.take_log();
    }
}

#[test]
fn requests_without_keys_are_not_signed() {
    let server = store();
    for keys in [KeySource::Nothing, KeySource::Skipped] {
        let source = open(&server, keys, 10_000).unwrap();
        read(&source, 5 * BLOCK, 1).unwrap();
    }
    assert!(server.take_log().iter().all(|request| {
        request.headers.keys().all(|name| name != "authorization" && !name.starts_with("x-amz"))
    }));
}

#[test]
fn a_denial_says_whose_keys_were_used_and_shows_none() {
    let server = store();
    let key = StoreKey::numbered(0);
    let wrong = StoreKey { secret: "hidden".into(), ..key.clone() };
    let known = key.clone();
    server.fail(move |request| judge(request, &known, REGION));
    let text = |keys: KeySource| {
        let error = open(&server, keys, 5_000).err().unwrap();
        assert!(error.is_denied(), "{error:?}");
        error.to_string()
    };
    assert_eq!(
        text(fixed(&wrong)),
        "the store answers with status 403 (SignatureDoesNotMatch); the request was signed with the credentials of the \
         environment"
    );
    assert!(text(fixed(&StoreKey::numbered(7))).contains("of the environment have expired"));
    assert!(text(KeySource::Nothing).contains("no credentials were found: set AWS_ACCESS_KEY_ID"));
    assert!(text(KeySource::Skipped).contains("because of AWS_SKIP_SIGNATURE"));
    let expired = match fixed(&key) {
        KeySource::Keys(keys) => KeySource::Keys(Keys { expires_unix_s: Some(1), ..keys }),
        other => other,
    };
    assert!(text(expired).contains("have expired"));
    server.fail(|_| refusal(404, "NoSuchKey"));
    let missing = open(&server, fixed(&key), 5_000).err().unwrap();
    assert!(missing.is_missing() && missing.to_string().contains("(NoSuchKey)"), "{missing}");
}

#[test]
fn a_bucket_in_another_region_is_found_and_a_store_that_misleads_is_not_followed_for_ever() {
    let server = store();
    let key = StoreKey::numbered(0);
    let known = key.clone();
    server.fail(move |request| match judge(request, &known, "us-west-2") {
        Fault::None => Fault::None,
        _ => Fault::Answer(301, "x-amz-bucket-region: us-west-2\r\n".into(), Vec::new()),
    });
    let source = open(&server, fixed(&key), 10_000).unwrap();
    read(&source, 0, LEN).unwrap();
    assert_eq!(server.take_log().len(), 3, "one was refused");
    // MinIO and older answers name the region in the body.
    let known = key.clone();
    server.fail(move |request| match judge(request, &known, "garage") {
        Fault::None => Fault::None,
        _ => Fault::Answer(
            400,
            String::new(),
            b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>garage</Region></Error>".to_vec(),
        ),
    });
    open(&server, fixed(&key), 10_000).unwrap();
    server.take_log();
    server.fail(|request| {
        Fault::Answer(301, format!("x-amz-bucket-region: r{}\r\n", request.number), Vec::new())
    });
    assert!(open(&server, fixed(&key), 2_000).is_err());
    assert_eq!(server.take_log().len(), 3);
    server.fail(|_| refusal(301, "PermanentRedirect"));
    let error = open(&server, fixed(&key), 2_000).err().unwrap();
    assert!(error.to_string().contains("set AWS_REGION"), "{error}");
    server.fail(|_| Fault::Answer(301, "x-amz-bucket-region: evil.example.org/\r\n".into(), Vec::new()));
    assert!(open(&server, fixed(&key), 2_000).is_err());
}

/// The keys expire while many read: the store refuses the old ones from now on.
#[test]
fn keys_that_expire_in_the_middle_of_reading_are_renewed_once_for_all_readers() {
    let current = Arc::new(AtomicU64::new(0));
    let (server, machine) = (store(), metadata_server(&current));
    accept(&server, &current);
    let small = Options { cache_bytes: 0, ..options(10_000) };
    let keys = KeySource::Instance { url: machine.url("") };
    let source = open_object(&ObjectName::parse(OBJECT).unwrap(), &settings(&server, keys), &small).unwrap();
    assert_eq!(machine.take_log().len(), 3, "a session, the role, its keys");
    for n in 1..6 {
        current.store(n, Ordering::SeqCst);
        read_at_once(&source);
        assert_eq!(machine.take_log().len(), 3, "renewal {n}");
    }
    assert_eq!(source.stats().failed_reads, 0);
}

#[test]
fn keys_are_renewed_before_they_expire_and_an_outage_of_their_service_is_not_seen() {
    let current = Arc::new(AtomicU64::new(0));
    let (server, machine) = (store(), Server::start());
    let asked = Arc::new(AtomicU64::new(0));
    let (shown, counted) = (current.clone(), asked.clone());
    machine.fail(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        assert_eq!(request.headers["authorization"], "Bearer container");
        let key = StoreKey::numbered(shown.load(Ordering::SeqCst));
        Fault::Answer(200, String::new(), credentials(&key, 4).into_bytes())
    });
    accept(&server, &current);
    let authorization = Some(Secret("Bearer container".into()));
    let keys = KeySource::Container { url: machine.url("/v2/x"), authorization, authorization_file: None };
    let source = open(&server, keys, 10_000).unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    // After half of their life others are fetched, though the old ones would still do.
    std::thread::sleep(Duration::from_millis(2500));
    read(&source, 4 * BLOCK, 1).unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    // The store wants other keys, and their service is away for a while.
    current.store(1, Ordering::SeqCst);
    let (shown, start) = (current.clone(), Instant::now());
    machine.fail(move |_| match start.elapsed() < Duration::from_millis(800) {
        true => Fault::Status(503, None),
        false => {
            let key = StoreKey::numbered(shown.load(Ordering::SeqCst));
            Fault::Answer(200, String::new(), credentials(&key, 3600).into_bytes())
        }
    });
    read(&source, 6 * BLOCK, 1).unwrap();
    assert!(source.stats().retries > 0);
    // Away for longer than a read may take.
    current.store(2, Ordering::SeqCst);
    let source = {
        let keys = KeySource::Container {
            url: machine.url("/v2/x"),
            authorization: Some(Secret("Bearer container".into())),
            authorization_file: None,
        };
        open(&server, keys, 800).unwrap()
    };
    machine.fail(|_| Fault::Hangup);
    current.store(3, Ordering::SeqCst);
    let start = Instant::now();
    let error = read(&source, 6 * BLOCK, 1).unwrap_err();
    assert!(matches!(error, BackingError::Unreachable { .. }));
    assert!(start.elapsed() < Duration::from_millis(1800), "{:?}", start.elapsed());
}

#[test]
fn a_machine_without_metadata_reads_public_buckets() {
    let server = store();
    let nowhere = Server::start();
    let url = nowhere.url("");
    drop(nowhere);
    let source = open(&server, KeySource::Instance { url }, 10_000).unwrap();
    read(&source, 0, LEN).unwrap();
    let without_role = Server::start();
    without_role.fail(|request| match request.method.as_str() {
        "PUT" => Fault::Answer(200, String::new(), b"the-session".to_vec()),
        _ => Fault::Status(404, None),
    });
    let source = open(&server, KeySource::Instance { url: without_role.url("") }, 10_000).unwrap();
    read(&source, 0, LEN).unwrap();
    assert!(server.take_log().iter().all(|request| !request.headers.contains_key("authorization")));
}

/// Services whose requests need a token of a file, which changes.
#[test]
fn identities_of_files_are_read_again_for_each_renewal() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let current = Arc::new(AtomicU64::new(0));
    let set = |n: u64| {
        std::fs::write(file.path(), format!("identity+{n}\n")).unwrap();
        current.store(n, Ordering::SeqCst);
    };
    set(0);
    let (server, service) = (store(), Server::start());
    accept(&server, &current);
    let shown = current.clone();
    service.fail(move |request| {
        let n = shown.load(Ordering::SeqCst);
        let key = StoreKey::numbered(n);
        if request.method == "GET" {
            assert_eq!(request.headers["authorization"], format!("identity+{n}"));
            return Fault::Answer(200, String::new(), credentials(&key, 3600).into_bytes());
        }
        assert_eq!(
            request.body,
            format!(
                "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fx&\
                 RoleSessionName=test&WebIdentityToken=identity%2B{n}"
            )
        );
        let body = format!(
            "<AssumeRoleWithWebIdentityResponse><Credentials><AccessKeyId>{}</AccessKeyId><SecretAccessKey>{}\
             </SecretAccessKey><SessionToken>{}</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration>\
             </Credentials></AssumeRoleWithWebIdentityResponse>",
            key.id,
            key.secret,
            key.token.unwrap()
        );
        Fault::Answer(200, String::new(), body.into_bytes())
    });
    let container = KeySource::Container {
        url: service.url("/creds"),
        authorization: None,
        authorization_file: Some(file.path().to_path_buf()),
    };
    let identity = KeySource::WebIdentity {
        url: service.url("/"),
        role_arn: "arn:aws:iam::1:role/x".into(),
        session_name: "test".into(),
        token_file: file.path().to_path_buf(),
    };
    for keys in [container, identity] {
        set(0);
        let source = open(&server, keys, 10_000).unwrap();
        set(1);
        read(&source, 5 * BLOCK, 1).unwrap();
    }
}

/// Faults at each request of an instance's metadata and of the store, at opening and at a renewal.
#[test]
fn transient_faults_of_metadata_and_stores_are_not_seen() {
    for fault in [Fault::Status(503, None), Fault::Status(429, Some("0".into()))] {
        for n in 0..6 {
            let current = Arc::new(AtomicU64::new(0));
            let (server, machine) = (store(), Server::start());
            let (shown, chosen) = (current.clone(), fault.clone());
            machine.fail(move |request| match request.number == n {
                true => chosen.clone(),
                false => metadata(request, &StoreKey::numbered(shown.load(Ordering::SeqCst)), 3600),
            });
            let (valid, chosen) = (current.clone(), fault.clone());
            server.fail(move |request| match request.number == n {
                true => chosen.clone(),
                false => judge(request, &StoreKey::numbered(valid.load(Ordering::SeqCst)), REGION),
            });
            let source = open(&server, KeySource::Instance { url: machine.url("") }, 10_000).unwrap();
            read(&source, 2 * BLOCK, 1).unwrap();
            current.store(1, Ordering::SeqCst);
            read(&source, 0, LEN).unwrap();
            assert!(source.stats().failed_reads == 0 && server.take_log().len() >= 4);
        }
    }
}

/// The metadata hang up once: the bucket is taken for a public one, and the denial makes the store ask again.
#[test]
fn an_instance_that_was_too_busy_is_asked_again_when_access_is_denied() {
    let current = Arc::new(AtomicU64::new(0));
    let (server, machine) = (store(), Server::start());
    accept(&server, &current);
    machine.fail(|request| match request.number {
        0 => Fault::Hangup,
        _ => metadata(request, &StoreKey::numbered(0), 3600),
    });
    let source = open(&server, KeySource::Instance { url: machine.url("") }, 10_000).unwrap();
    read(&source, 0, LEN).unwrap();
    assert_eq!(machine.take_log().len(), 4);
}

/// Services and stores that never answer, with many readers: each read ends by its deadline.
#[test]
fn reads_end_by_their_deadlines_while_keys_cannot_be_renewed() {
    let current = Arc::new(AtomicU64::new(0));
    let timeout = Duration::from_millis(900);
    for fault in [Fault::Late(Duration::from_secs(5)), Fault::Hangup, Fault::Status(503, Some("60".into()))] {
        current.store(0, Ordering::SeqCst);
        let (server, machine) = (store(), metadata_server(&current));
        accept(&server, &current);
        let keys = KeySource::Instance { url: machine.url("") };
        let small = Options { cache_bytes: 0, ..options(timeout.as_millis() as u64) };
        let source =
            open_object(&ObjectName::parse(OBJECT).unwrap(), &settings(&server, keys), &small).unwrap();
        machine.fail(move |_| fault.clone());
        current.store(1, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (1..9_u64)
                .map(|block| {
                    let source = &source;
                    scope.spawn(move || {
                        let start = Instant::now();
                        assert!(read(source, block * BLOCK, 1).is_err());
                        start.elapsed()
                    })
                })
                .collect();
            for reader in readers {
                let took = reader.join().unwrap();
                assert!(took < timeout + Duration::from_secs(1), "{took:?}");
            }
        });
        // The source works on as soon as the service does.
        machine.fail(|request| metadata(request, &StoreKey::numbered(1), 3600));
        read(&source, 5 * BLOCK, 1).unwrap();
    }
}

/// Many readers are answered that the bucket is elsewhere, at once.
#[test]
fn all_readers_follow_a_bucket_to_another_region() {
    let (server, key) = (store(), StoreKey::numbered(0));
    let (moved, region) = (Arc::new(AtomicU64::new(0)), ["eu-west-3", "us-west-2", "us-east-2"]);
    let (known, now) = (key.clone(), moved.clone());
    server.fail(move |request| {
        let region = region[now.load(Ordering::SeqCst) as usize];
        match judge(request, &known, region) {
            Fault::None => Fault::None,
            _ => Fault::Answer(301, format!("x-amz-bucket-region: {region}\r\n"), Vec::new()),
        }
    });
    let small = Options { cache_bytes: 0, ..options(10_000) };
    let source =
        open_object(&ObjectName::parse(OBJECT).unwrap(), &settings(&server, fixed(&key)), &small).unwrap();
    for n in 1..3 {
        moved.store(n, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (1..9_u64)
                .map(|block| {
                    let source = &source;
                    scope.spawn(move || read(source, block * BLOCK, 1))
                })
                .collect();
            readers.into_iter().for_each(|reader| reader.join().unwrap().unwrap());
        });
    }
}

#[test]
fn keys_of_an_instance_that_the_store_denies_are_named_with_its_reason() {
    let (server, machine) = (store(), metadata_server(&Arc::default()));
    let denied = |code: &'static str| {
        server.fail(move |_| refusal(403, code));
        machine.take_log();
        let error = open(&server, KeySource::Instance { url: machine.url("") }, 5_000).err().unwrap();
        assert!(error.is_denied(), "{error:?}");
        (error.to_string(), machine.take_log().len())
    };
    let (text, asked) = denied("AccessDenied");
    assert!(text.contains("403 (AccessDenied)") && text.contains("of the instance's metadata"), "{text}");
    assert_eq!(asked, 3, "other keys would not help");
    let (text, asked) = denied("InvalidAccessKeyId");
    assert!(text.contains("403 (InvalidAccessKeyId)"), "{text}");
    assert_eq!(asked, 9, "at first, and for two more requests");
}

#[test]
fn a_bucket_whose_readers_pay_is_read_by_those_who_say_so() {
    let (server, key) = (store(), StoreKey::numbered(0));
    let known = key.clone();
    server.fail(move |request| match request.headers.get("x-amz-request-payer").map(String::as_str) {
        Some("requester") => judge(request, &known, REGION),
        _ => refusal(403, "AccessDenied"),
    });
    let name = ObjectName::parse(OBJECT).unwrap();
    let open = |pays_requests| {
        let settings = S3Settings { pays_requests, ..settings(&server, fixed(&key)) };
        open_object(&name, &settings, &options(5000))
    };
    read(&open(true).unwrap(), 0, LEN).unwrap();
    let error = open(false).err().unwrap().to_string();
    assert!(error.contains("AWS_REQUEST_PAYER=requester"), "{error}");
}

/// The store's clock is an hour ahead: its answers say so.
#[test]
fn signatures_are_of_the_time_of_the_store() {
    let server = store();
    let date = |format: &str| {
        let mut program = std::process::Command::new("date");
        let output = program.env("LC_ALL", "C").args(["-u", "-d", "+1 hour", format]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    server.fail(move |request| {
        let signed = seconds_of(&request.headers["x-amz-date"]);
        let now: u64 = date("+%s").parse().unwrap();
        if signed.abs_diff(now) < 60 {
            return Fault::None;
        }
        let Fault::Answer(status, headers, body) = refusal(403, "RequestTimeTooSkewed") else { panic!() };
        Fault::Answer(status, format!("{headers}Date: {}\r\n", date("+%a, %d %b %Y %T GMT")), body)
    });
    let source = open(&server, fixed(&StoreKey::numbered(0)), 5000).unwrap();
    read(&source, 0, LEN).unwrap();
    assert_eq!(server.take_log().len(), 3, "one refusal, the beginning, the rest");
}
