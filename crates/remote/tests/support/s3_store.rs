//! A store of S3 for tests: the small server, with answers that depend on the signature of a request.
//!
//! The signature is computed from what was received: the headers that the request names as signed, and the path of its
//! first line. So a header that was changed on its way, or a path that was encoded twice, is noticed.

#![allow(dead_code, reason = "each test program uses a part of this module")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::server::{Fault, Request};
use ring::{digest, hmac};
use std::time::{Duration, SystemTime};

/// A key that the store knows.
#[derive(Clone, Debug)]
pub struct StoreKey {
    pub id: String,
    pub secret: String,
    pub token: Option<String>,
}

impl StoreKey {
    /// Key `n`, with a session token.
    pub fn numbered(n: u64) -> Self {
        StoreKey { id: format!("KEY{n}"), secret: format!("hidden{n}"), token: Some(format!("session{n}")) }
    }
}

/// The answer of a store to a request: none if it is signed by the key for the region.
pub fn judge(request: &Request, key: &StoreKey, region: &str) -> Fault {
    match verify(request, key, region) {
        Ok(()) => Fault::None,
        Err((status, code)) => refusal(status, code),
    }
}

/// A refusal as S3 writes it.
pub fn refusal(status: u16, code: &str) -> Fault {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>no</Message></Error>"
    );
    Fault::Answer(status, "Content-Type: application/xml\r\n".into(), body.into_bytes())
}

fn verify(request: &Request, key: &StoreKey, region: &str) -> Result<(), (u16, &'static str)> {
    let header = |name: &str| request.headers.get(name).map(String::as_str);
    let authorization = header("authorization").ok_or((403, "AccessDenied"))?;
    let fields = authorization.strip_prefix("AWS4-HMAC-SHA256 ").ok_or((400, "InvalidArgument"))?;
    let field = |name: &str| {
        let mut all = fields.split(',').filter_map(|field| field.trim().split_once('='));
        all.find(|(key, _)| *key == name).map(|(_, value)| value).unwrap()
    };
    let scope: Vec<_> = field("Credential").split('/').collect();
    let time = header("x-amz-date").unwrap();
    assert_eq!((scope.len(), scope[1], scope[3], scope[4]), (5, &time[..8], "s3", "aws4_request"));
    assert!(is_now(time), "{time}");
    if scope[0] != key.id || header("x-amz-security-token") != key.token.as_deref() {
        return Err((400, "ExpiredToken"));
    }
    if scope[2] != region {
        return Err((400, "AuthorizationHeaderMalformed"));
    }
    let names = field("SignedHeaders");
    let is_signed = |name: &str| names.split(';').any(|signed| signed == name);
    let needed = request.headers.keys().filter(|name| name.starts_with("x-amz-") || *name == "host");
    needed.for_each(|name| assert!(is_signed(name), "{name} is not signed"));
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let mut text = format!("{}\n{path}\n{query}\n", request.method);
    for name in names.split(';') {
        text += &format!("{name}:{}\n", header(name).unwrap());
    }
    text += &format!("\n{names}\n{}", header("x-amz-content-sha256").unwrap());
    let hash = hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{}\n{hash}", scope[1..].join("/"));
    let mut secret = format!("AWS4{}", key.secret).into_bytes();
    for step in scope[1..].iter().copied().chain([text.as_str()]) {
        let signing = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        secret = hmac::sign(&signing, step.as_bytes()).as_ref().to_vec();
    }
    match hex(&secret) == field("Signature") {
        true => Ok(()),
        false => Err((403, "SignatureDoesNotMatch")),
    }
}

/// Whether a time is within a minute.
fn is_now(time: &str) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    now.abs_diff(Duration::from_secs(seconds_of(time))) < Duration::from_secs(60)
}

/// The time of a signature, seconds since 1970: by the program `date`, which is not the code under test.
pub fn seconds_of(time: &str) -> u64 {
    let (day, hour) = time.trim_end_matches('Z').split_once('T').unwrap();
    let text = format!("{day} {}:{}:{}", &hour[..2], &hour[2..4], &hour[4..]);
    let date = std::process::Command::new("date").args(["-u", "+%s", "-d", &text]).output().unwrap();
    String::from_utf8(date.stdout).unwrap().trim().parse().unwrap()
}

/// The metadata of an instance whose role has this key for so many seconds.
pub fn metadata(request: &Request, key: &StoreKey, life_s: u64) -> Fault {
    let ok = |body: String| Fault::Answer(200, String::new(), body.into_bytes());
    let has_session =
        request.headers.get("x-aws-ec2-metadata-token").is_some_and(|token| token == "the-session");
    match (request.method.as_str(), request.path.as_str()) {
        ("PUT", "/latest/api/token") => {
            assert!(request.headers.contains_key("x-aws-ec2-metadata-token-ttl-seconds"));
            ok("the-session".into())
        }
        ("GET", _) if !has_session => Fault::Status(401, None),
        ("GET", "/latest/meta-data/iam/security-credentials/") => ok("reader".into()),
        ("GET", "/latest/meta-data/iam/security-credentials/reader") => ok(credentials(key, life_s)),
        _ => Fault::Status(404, None),
    }
}

/// Credentials as services of machines write them.
pub fn credentials(key: &StoreKey, life_s: u64) -> String {
    let at = format!("+{life_s} seconds");
    let date = std::process::Command::new("date").args(["-u", "+%FT%TZ", "-d", &at]).output().unwrap();
    let expiration = String::from_utf8(date.stdout).unwrap();
    format!(
        r#"{{"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "{}", "SecretAccessKey": "{}", "Token": "{}",
        "Expiration": "{}"}}"#,
        key.id,
        key.secret,
        key.token.as_deref().unwrap_or(""),
        expiration.trim()
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
