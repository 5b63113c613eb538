//! Other implementations of stores, which check signatures: moto (S3, in Python) and Azurite (Microsoft's emulator).
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../../remote/tests/support/guest.rs"]
mod guest;

use pagefold_backing::ByteSource;
use pagefold_bucket::{Bucket, BucketError, Condition, verdict};
use pagefold_remote::azure::{AzureCredentials, AzureSettings};
use pagefold_remote::s3::{KeySource, Keys, S3Settings};
use pagefold_remote::stores::{self, ObjectName, StoreSettings};
use pagefold_remote::{Options, Secret};
use pagefold_testkit::skipped;
use std::io::{BufRead, BufReader, Cursor};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A running store, and the words of the lines that it has printed.
struct Peer {
    child: Child,
    lines: Vec<Vec<String>>,
}

impl Peer {
    fn start(mut command: Command) -> Result<Self, String> {
        for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"] {
            command.env_remove(name).env_remove(name.to_lowercase());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        let mut lines = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let words: Vec<_> = line.unwrap().split(' ').map(String::from).collect();
            if words == ["ready"] {
                return Ok(Peer { child, lines });
            }
            lines.push(words);
        }
        let _ = child.wait();
        Err("it does not start".into())
    }

    fn words(&self, first: &str) -> &[String] {
        &self.lines.iter().find(|words| words[0] == first).unwrap()[1..]
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn support(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../remote/tests/support").join(name)
}

fn open(name: &str, settings: &StoreSettings) -> Bucket {
    Bucket::open(&ObjectName::parse(name).unwrap(), settings, Duration::from_secs(30)).unwrap()
}

/// Everything that a saved disk needs of a store.
fn use_bucket(name: &str, folder: &str, settings: &StoreSettings) {
    let key = |name: &str| format!("{folder}{name}");
    let bucket = &open(name, settings);
    for len in [10, 20 << 20] {
        let (go, waits) = verdict();
        go.go(len);
        let bytes =
            (0..len).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect::<Vec<_>>();
        let uploaded = bucket.put_stream(&key("k.1"), Cursor::new(bytes.clone()), waits).unwrap();
        assert_eq!(uploaded.len_bytes, len);
        // As a restore reads it.
        let written = ObjectName::parse(name).unwrap().with_key(&key("k.1")).unwrap();
        let source = stores::open(&written, settings, &Options::default()).unwrap();
        let mut read = vec![0; source.len_bytes() as usize];
        source.read_at(0, &mut read).unwrap();
        assert!(read == bytes);
    }
    assert!(bucket.get(&key("k"), 10).unwrap().is_none());
    bucket.put_if(&key("k"), b"one", &Condition::Absent).unwrap();
    assert_eq!(bucket.put_if(&key("k"), b"two", &Condition::Absent), Err(BucketError::Changed));
    let one = bucket.get(&key("k"), 10).unwrap().unwrap();
    bucket.put_if(&key("k"), b"two", &Condition::Is(one.version.clone())).unwrap();
    assert_eq!(bucket.put_if(&key("k"), b"three", &Condition::Is(one.version)), Err(BucketError::Changed));
    assert_eq!(bucket.get(&key("k"), 10).unwrap().unwrap().bytes, b"two");
    let (go, waits) = verdict();
    drop(go);
    let stream = Cursor::new(vec![0; 20 << 20]);
    assert_eq!(bucket.put_stream(&key("k.2"), stream, waits), Err(BucketError::GivenUp));
    let listed = bucket.list(&key("k.")).unwrap();
    assert!(listed.iter().map(|object| object.key.as_str()).eq([key("k.1")]), "{listed:?}");
    bucket.delete(&key("k.1")).unwrap();
    bucket.delete(&key("k.1")).unwrap();
    assert!(bucket.list(&key("k.")).unwrap().is_empty());
}

fn object() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "an object").unwrap();
    file
}

#[test]
fn moto_takes_saved_disks() {
    let file = object();
    let started = guest::install("moto.sh").and_then(|python| {
        let mut command = Command::new(python);
        command.arg(support("bucket.py")).arg(file.path());
        Peer::start(command)
    });
    let moto = match started {
        Ok(moto) => moto,
        Err(why) => return skipped!("moto_takes_saved_disks: {why}"),
    };
    let keys = moto.words("key");
    let settings = |secret: &str| {
        let keys = KeySource::Keys(Keys {
            key_id: keys[0].clone(),
            secret_key: Secret(secret.into()),
            token: keys.get(2).cloned().map(Secret),
            expires_unix_s: None,
            origin: "a test".into(),
        });
        let s3 = S3Settings {
            endpoint: Some(moto.words("endpoint")[0].clone()),
            region: "eu-west-3".into(),
            is_path_style: true,
            pays_requests: false,
            keys,
        };
        StoreSettings { s3: Some(s3), ..StoreSettings::default() }
    };
    // moto signs queries with a slash in another way than AWS.
    use_bucket("s3://images/k", "", &settings(&keys[1]));
    let wrong = open("s3://images/k", &settings("wrong")).put_if("k", b"", &Condition::Absent).unwrap_err();
    assert!(
        matches!(&wrong, BucketError::Denied { what } if what.contains("SignatureDoesNotMatch")),
        "{wrong}"
    );
}

#[test]
fn azurite_takes_saved_disks() {
    let (file, folder) = (object(), tempfile::tempdir().unwrap());
    let started = guest::install("azurite.sh").and_then(|script| {
        let mut command = Command::new("node");
        command.arg(support("blobs.js")).args([Path::new(&script), file.path(), folder.path()]);
        Peer::start(command)
    });
    let azurite = match started {
        Ok(azurite) => azurite,
        Err(why) => return skipped!("azurite_takes_saved_disks: {why}"),
    };
    let settings = |credentials| {
        let azure = AzureSettings {
            account: "devstoreaccount1".into(),
            endpoint: azurite.words("endpoint")[0].clone(),
            credentials,
        };
        StoreSettings { azure: Some(azure), ..StoreSettings::default() }
    };
    let key = AzureCredentials::Key { key: Secret(KEY.into()), origin: "a test".into() };
    use_bucket("az://images/k", "folder/", &settings(key));
    // A signature for reading.
    let sas =
        AzureCredentials::Sas { query: Secret(azurite.words("sas")[0].clone()), origin: "a test".into() };
    let refused = open("az://images/k", &settings(sas)).put_if("k", b"", &Condition::Absent).unwrap_err();
    assert!(
        matches!(refused, BucketError::Denied { .. }) && !refused.to_string().contains("sig="),
        "{refused}"
    );
}
