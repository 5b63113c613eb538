//! Writing to a small S3 that fails: streams, conditions, lists, and what stays after a failure.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../../remote/tests/support/s3_writes.rs"]
mod s3_writes;
#[path = "../../remote/tests/support/server.rs"]
mod server;

use pagefold_bucket::{Bucket, BucketError, Condition, verdict};
use pagefold_remote::Secret;
use pagefold_remote::gcs::{GcsCredentials, GcsSettings};
use pagefold_remote::s3::{KeySource, Keys, S3Settings};
use pagefold_remote::stores::{ObjectName, StoreSettings};
use s3_writes::{WriteFault, Writes};
use server::{Fault, Server};
use std::io::Write;
use std::time::Duration;

/// The first part of an upload.
const PART: usize = 8 << 20;

struct Store {
    server: Server,
    writes: Writes,
    bucket: Bucket,
}

fn store_with(timeout: Duration) -> Store {
    let server = Server::start();
    let writes = Writes::on(&server);
    let keys = KeySource::Keys(Keys {
        key_id: "KEY".into(),
        secret_key: Secret("hidden".into()),
        token: None,
        expires_unix_s: None,
        origin: "a test".into(),
    });
    let s3 = S3Settings {
        endpoint: Some(server.url("")),
        region: "eu-west-3".into(),
        is_path_style: true,
        pays_requests: false,
        keys,
    };
    let settings = StoreSettings { s3: Some(s3), ..StoreSettings::default() };
    let bucket = Bucket::open(&ObjectName::parse("s3://disks/a").unwrap(), &settings, timeout).unwrap();
    Store { server, writes, bucket }
}

fn store() -> Store {
    store_with(Duration::from_secs(20))
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Uploads bytes with the right verdict.
fn upload(store: &Store, key: &str, bytes: &[u8]) -> Result<u64, BucketError> {
    let (go, verdict) = verdict();
    go.go(bytes.len() as u64);
    let input = std::io::Cursor::new(bytes.to_vec());
    let uploaded = store.bucket.put_stream(key, input, verdict).map(|uploaded| uploaded.len_bytes);
    drop(go);
    uploaded
}

#[test]
fn streams_of_all_lengths_arrive() {
    let store = store();
    for len in [0, 1, PART - 1, PART, PART + 1, 5 * PART + 77] {
        let bytes = noise(len);
        assert_eq!(upload(&store, "folder/a b+c.saved", &bytes), Ok(len as u64));
        assert!(store.writes.get("/disks/folder/a%20b%2Bc.saved").unwrap() == bytes, "{len}");
        assert_eq!(store.writes.uploads(), 0);
    }
    // All requests are signed.
    let log = store.server.take_log();
    assert!(log.iter().all(|request| request.headers["authorization"].contains("Credential=KEY/")));
}

/// Answers that are lost, errors of the server and pauses are outlasted, wherever they come.
#[test]
fn passing_failures_are_repeated() {
    let store = store();
    let bytes = noise(3 * PART + 5);
    for n in 0..6 {
        let faults: [fn() -> WriteFault; 4] = [
            || WriteFault::Before(Fault::Status(500, None)),
            || WriteFault::Before(Fault::Hangup),
            || WriteFault::Before(Fault::Status(503, None)),
            || WriteFault::After(Fault::Status(500, None)),
        ];
        for (kind, fault) in faults.into_iter().enumerate() {
            // A completion whose answer is lost is not repeated: the store does not know the upload any more.
            let mut seen = 0;
            store.writes.fail(move |request| {
                let is_end = request.method == "POST" && request.path.contains("uploadId");
                seen += 1;
                if seen == n + 1 && !(is_end && kind == 3) { fault() } else { WriteFault::None }
            });
            let key = format!("k{n}-{kind}");
            assert_eq!(upload(&store, &key, &bytes), Ok(bytes.len() as u64), "{n} {kind}");
            assert!(store.writes.get(&format!("/disks/{key}")).unwrap() == bytes, "{n} {kind}");
        }
    }
}

#[test]
fn a_refused_part_aborts_the_upload() {
    let store = store();
    store.writes.fail(|request| match request.path.contains("partNumber=2") {
        true => WriteFault::Before(Fault::Status(403, None)),
        false => WriteFault::None,
    });
    let error = upload(&store, "k", &noise(3 * PART)).unwrap_err();
    assert!(matches!(&error, BucketError::Denied { what } if what.contains("403")), "{error}");
    assert!(store.writes.paths().is_empty());
    assert_eq!(store.writes.uploads(), 0);
}

/// The end of the stream does not complete an object: its writer may have died.
#[test]
fn without_a_verdict_there_is_no_object() {
    let store = store();
    for len in [100, 2 * PART + 1] {
        let (go, waits) = verdict();
        let (input, mut output) = std::io::pipe().unwrap();
        let bytes = noise(len);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                output.write_all(&bytes).unwrap();
                drop(output);
                std::thread::sleep(Duration::from_millis(50));
                drop(go);
            });
            assert_eq!(store.bucket.put_stream("k", input, waits), Err(BucketError::GivenUp));
        });
        let (go, waits) = verdict();
        go.go(len as u64 + 1);
        let error = store.bucket.put_stream("k", std::io::Cursor::new(bytes), waits).unwrap_err();
        assert!(matches!(error, BucketError::Input { .. }), "{error}");
    }
    assert!(store.writes.paths().is_empty());
    assert_eq!(store.writes.uploads(), 0);
}

/// Giving up ends an upload whose stream and store are silent.
#[test]
fn an_upload_is_given_up_at_any_time() {
    let store = store();
    let (go, waits) = verdict();
    let (input, mut output) = std::io::pipe().unwrap();
    std::thread::scope(|scope| {
        let uploading = scope.spawn(|| store.bucket.put_stream("k", input, waits));
        output.write_all(&noise(2 * PART + 5)).unwrap();
        drop(go);
        assert_eq!(uploading.join().unwrap(), Err(BucketError::GivenUp));
    });
    assert_eq!(store.writes.uploads(), 0);
    // The end of the pipe is still open: nobody has waited for it.
    drop(output);
}

#[test]
fn a_conditional_write_sees_other_writers() {
    let Store { bucket, writes, .. } = &store();
    assert!(bucket.get("m", 100).unwrap().is_none());
    bucket.put_if("m", b"one", &Condition::Absent).unwrap();
    assert_eq!(bucket.put_if("m", b"two", &Condition::Absent), Err(BucketError::Changed));
    let one = bucket.get("m", 100).unwrap().unwrap();
    assert_eq!(one.bytes, b"one");
    bucket.put_if("m", b"two", &Condition::Is(one.version.clone())).unwrap();
    assert_eq!(bucket.put_if("m", b"three", &Condition::Is(one.version)), Err(BucketError::Changed));
    let two = bucket.get("m", 100).unwrap().unwrap();
    bucket.delete("m").unwrap();
    assert_eq!(bucket.put_if("m", b"three", &Condition::Is(two.version)), Err(BucketError::Changed));
    bucket.delete("m").unwrap();
    // 409 while another conditional write is on its way, perhaps an earlier one of this client: nothing is known.
    bucket.put_if("m", b"four", &Condition::Absent).unwrap();
    let four = bucket.get("m", 100).unwrap().unwrap();
    let mut is_first = true;
    writes.fail(move |request| match request.method.as_str() {
        "PUT" if std::mem::take(&mut is_first) => WriteFault::Before(Fault::Status(409, None)),
        _ => WriteFault::None,
    });
    let conflict = bucket.put_if("m", b"five", &Condition::Is(four.version.clone())).unwrap_err();
    assert!(matches!(&conflict, BucketError::Failed { what } if what.contains("409")), "{conflict}");
    bucket.put_if("m", b"five", &Condition::Is(four.version)).unwrap();
}

/// Whatever lies at a key, no more than what is asked for is sent.
#[test]
fn a_small_object_is_read_and_a_large_one_is_not() {
    let Store { bucket, writes, server } = &store();
    for len in [0, 1, 99, 100, 101, 9 << 20] {
        writes.put("/disks/m", noise(len));
        server.take_log();
        match bucket.get("m", 100) {
            Ok(found) => assert!(len <= 100 && found.unwrap().bytes == noise(len), "{len}"),
            Err(e) => assert!(len > 100 && e == BucketError::TooLong { max_bytes: 100 }, "{len} {e}"),
        }
        assert_eq!(server.take_log()[0].range(), Some((0, 100)));
    }
    writes.put("/disks/m", Vec::new());
    let empty = bucket.get("m", 100).unwrap().unwrap();
    bucket.put_if("m", b"one", &Condition::Is(empty.version)).unwrap();
}

/// A write under a condition is one request: a caller that repeats it knows of all.
#[test]
fn a_conditional_write_is_sent_once() {
    let Store { bucket, writes, server } = &store();
    for fault in [|| Fault::Status(500, None), || Fault::Hangup, || Fault::Status(409, None)] {
        let fault: fn() -> Fault = fault;
        writes.fail(move |_| WriteFault::Before(fault()));
        server.take_log();
        let error = bucket.put_if("m", b"one", &Condition::Absent).unwrap_err();
        assert!(matches!(error, BucketError::Failed { .. }), "{error}");
        assert_eq!(server.take_log().len(), 1);
    }
}

/// Google's storage takes the same requests, with other conditions.
#[test]
fn google_takes_streams_and_conditions() {
    let server = Server::start();
    let writes = Writes::on(&server);
    let credentials = GcsCredentials::Nothing;
    let gcs = GcsSettings { endpoint: server.url(""), payer: None, credentials };
    let settings = StoreSettings { gcs: Some(gcs), ..StoreSettings::default() };
    let name = ObjectName::parse("gs://disks/a").unwrap();
    let bucket = Bucket::open(&name, &settings, Duration::from_secs(20)).unwrap();
    let store = Store { server, writes, bucket };
    for len in [10, PART + 1] {
        assert_eq!(upload(&store, "d/k.1", &noise(len)), Ok(len as u64));
        assert!(store.writes.get("/disks/d/k.1").unwrap() == noise(len));
    }
    let bucket = &store.bucket;
    bucket.put_if("d/k", b"one", &Condition::Absent).unwrap();
    assert_eq!(bucket.put_if("d/k", b"two", &Condition::Absent), Err(BucketError::Changed));
    let one = bucket.get("d/k", 100).unwrap().unwrap();
    bucket.put_if("d/k", b"two", &Condition::Is(one.version.clone())).unwrap();
    assert_eq!(bucket.put_if("d/k", b"three", &Condition::Is(one.version)), Err(BucketError::Changed));
    assert_eq!(bucket.list("d/k.").unwrap().len(), 1);
    bucket.delete("d/k.1").unwrap();
    assert!(bucket.list("d/k.").unwrap().is_empty());
}

#[test]
fn a_list_has_all_pages_of_a_prefix() {
    let Store { bucket, writes, .. } = &store();
    for key in ["d/x.1", "d/x.2", "d/x.3", "d/x", "d/xy", "d/y.1", "x.1"] {
        writes.put(&format!("/disks/{key}"), key.as_bytes().to_vec());
    }
    let listed = bucket.list("d/x.").unwrap();
    assert!(listed.iter().map(|object| object.key.as_str()).eq(["d/x.1", "d/x.2", "d/x.3"]));
    assert_eq!((listed[0].len_bytes, listed[0].modified_unix_s), (5, 1_767_323_045));
}

#[test]
fn errors_say_what_the_store_says() {
    let Store { bucket, writes, .. } = &store();
    let answer = |status, code: &str| {
        let body = format!("<Error><Code>{code}</Code><Message>x</Message></Error>").into_bytes();
        writes.fail(move |_| WriteFault::Before(Fault::Answer(status, String::new(), body.clone())));
        bucket.put_if("k", b"", &Condition::Absent).unwrap_err()
    };
    let denied = answer(403, "AccessDenied");
    assert!(matches!(&denied, BucketError::Denied { what } if what.contains("(AccessDenied)")), "{denied}");
    let missing = answer(404, "NoSuchBucket");
    assert!(
        matches!(&missing, BucketError::Missing { what } if what.contains("no such bucket")),
        "{missing}"
    );
    assert!(matches!(bucket.get("k", 10), Err(BucketError::Missing { .. })));
    assert!(answer(301, "PermanentRedirect").to_string().contains("AWS_REGION"));
    assert!(answer(501, "NotImplemented").to_string().contains("conditional"));
    for key in ["/k", "k/", "a//b", "a/../b"] {
        assert!(matches!(bucket.delete(key), Err(BucketError::SetUp { .. })), "{key}");
    }
}

/// A store that does not answer is an error after the time limit.
#[test]
fn a_silent_store_is_an_error() {
    let store = store_with(Duration::from_secs(1));
    store.writes.fail(|_| WriteFault::Before(Fault::Late(Duration::from_secs(30))));
    let error = store.bucket.get("k", 100).unwrap_err();
    assert!(matches!(error, BucketError::Failed { .. }), "{error}");
}
