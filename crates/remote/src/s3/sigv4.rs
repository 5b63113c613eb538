//! AWS Signature Version 4 for the one kind of request that is sent here: a GET of an object, signed by headers.
//!
//! Written from AWS's description of the algorithm, and tested by the examples in it. HMAC and SHA-256 are those of
//! `ring`. `Range` and `If-Match` are not signed, so one signature serves all requests of a second.

use super::settings::Keys;
use crate::encoding::hex;
use crate::{Secret, Url, time};
use ring::{digest, hmac};
use std::time::SystemTime;

/// SHA-256 of nothing: a GET has no body.
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The headers of a signed GET of `url`. `pays`: the user pays for it, and not the owner of the bucket.
pub(super) fn headers(
    url: &Url,
    region: &str,
    keys: &Keys,
    pays: bool,
    now: SystemTime,
) -> Vec<(&'static str, Secret)> {
    let time = time::basic(now);
    let host = url.host_and_port();
    let mut signed =
        vec![("host", host), ("x-amz-content-sha256", EMPTY_SHA256), ("x-amz-date", time.as_str())];
    if pays {
        signed.push(("x-amz-request-payer", "requester"));
    }
    if let Some(Secret(token)) = &keys.token {
        signed.push(("x-amz-security-token", token));
    }
    let authorization = authorization(url.path(), &signed, region, keys, &time);
    // The library sends the host.
    let sent = signed.iter().skip(1).map(|(name, value)| (*name, Secret(value.to_string())));
    sent.chain([("authorization", Secret(authorization))]).collect()
}

/// The header `Authorization`. `signed` are the headers to sign, their names in lower case and in order.
fn authorization(
    path: &str,
    signed: &[(&'static str, &str)],
    region: &str,
    keys: &Keys,
    time: &str,
) -> String {
    let names: Vec<_> = signed.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String = signed.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    // Method, path, query, headers, their names, hash of the body.
    let canonical = format!("GET\n{path}\n\n{lines}\n{names}\n{EMPTY_SHA256}");
    let day = &time[..8];
    let scope = format!("{day}/{region}/s3/aws4_request");
    let hash = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}");
    let secret_key = format!("AWS4{}", keys.secret_key.0);
    let steps = [day, region, "s3", "aws4_request"];
    let key = steps.iter().fold(secret_key.into_bytes(), |key, step| mac(&key, step));
    let signature = hex(&mac(&key, &to_sign));
    format!("AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}", keys.key_id)
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of the examples in AWS's documentation.
    fn keys(token: Option<&str>) -> Keys {
        Keys {
            key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into()),
            token: token.map(|token| Secret(token.into())),
            expires_unix_s: None,
            origin: "a test".into(),
        }
    }

    /// "Example: GET Object" of "Signature Calculations for the Authorization Header" in the documentation of S3.
    #[test]
    fn the_documented_example_has_the_documented_signature() {
        let signed = [
            ("host", "examplebucket.s3.amazonaws.com"),
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", EMPTY_SHA256),
            ("x-amz-date", "20130524T000000Z"),
        ];
        let header = authorization("/test.txt", &signed, "us-east-1", &keys(None), "20130524T000000Z");
        assert_eq!(
            header,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }

    /// The same request as botocore signs it, without the range, with a token, a port and an encoded path.
    #[test]
    fn signatures_are_those_of_botocore() {
        let url = Url::parse("http://127.0.0.1:9000/images/a%20b/app.erofs").unwrap();
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_369_353_600);
        let headers = headers(&url, "eu-west-3", &keys(Some("session/token==")), false, now);
        let names: Vec<_> = headers.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["x-amz-content-sha256", "x-amz-date", "x-amz-security-token", "authorization"]);
        let signature = headers[3].1.0.rsplit('=').next().unwrap();
        assert_eq!(signature, "5336c4fb90ff1c0dc18ec9f04fff4fb130795f030acfb07657b97d766462ffdf");
        assert!(!format!("{headers:?}").contains("session"));
    }
}
