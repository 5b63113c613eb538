//! Another implementation of S3, which checks signatures with AWS's own library: moto, in Python.

use crate::s3::open_object;
use crate::{LEN, contents, options, read};
use pagefold_remote::Secret;
use pagefold_remote::s3::{KeySource, Keys, S3Settings};
use pagefold_remote::stores::ObjectName;
use pagefold_testkit::skipped;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running server; it ends with its standard input.
struct Moto {
    child: Child,
    endpoint: String,
    keys: Vec<(String, String, Option<String>)>,
}

impl Moto {
    /// Starts the server with an object in the bucket `images`; the error says why it cannot be.
    fn start(object: &Path) -> Result<Self, String> {
        let mut command = Command::new(crate::guest::install("moto.sh")?);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/bucket.py")).arg(object);
        for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"] {
            command.env_remove(name).env_remove(name.to_lowercase());
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = || lines.next().and_then(Result::ok);
        let (mut endpoint, mut keys) = (None, Vec::new());
        loop {
            let Some(line) = next() else {
                let _ = child.wait();
                return Err("the server of moto does not start".into());
            };
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["endpoint", url] => endpoint = Some(url.to_string()),
                ["key", id, secret] => keys.push((id.into(), secret.into(), None)),
                ["key", id, secret, token] => keys.push((id.into(), secret.into(), Some(token.into()))),
                ["ready"] => break,
                _ => {}
            }
        }
        let endpoint = endpoint.ok_or("moto has no endpoint")?;
        Ok(Moto { child, endpoint, keys })
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn moto_accepts_our_signatures_and_no_wrong_ones() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), contents(0)).unwrap();
    let moto = match Moto::start(file.path()) {
        Ok(moto) => moto,
        Err(why) => return skipped!("moto_accepts_our_signatures_and_no_wrong_ones: {why}"),
    };
    assert_eq!(moto.keys.len(), 2, "of a user, and of a session");
    // moto computes other signatures than the AWS library for keys that a URL encodes: those are tested elsewhere.
    let location = ObjectName::parse("s3://images/apps/app-1.0_x.erofs").unwrap();
    for (key_id, secret_key, token) in &moto.keys {
        let open = |secret_key: &str| {
            let keys = KeySource::Keys(Keys {
                key_id: key_id.clone(),
                secret_key: Secret(secret_key.to_string()),
                token: token.clone().map(Secret),
                expires_unix_s: None,
                origin: "a test".into(),
            });
            let endpoint = Some(moto.endpoint.clone());
            let settings = S3Settings {
                endpoint,
                region: "eu-west-3".into(),
                is_path_style: true,
                pays_requests: false,
                keys,
            };
            open_object(&location, &settings, &options(10_000))
        };
        let source = open(secret_key).unwrap();
        read(&source, 0, LEN).unwrap();
        let error = open("wrong").err().unwrap();
        assert!(error.to_string().contains("SignatureDoesNotMatch"), "{error}");
    }
}
