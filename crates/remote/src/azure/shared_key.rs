//! The signature by the key of an account ("Shared Key") for the one kind of request that is sent here: a GET of a blob.
//!
//! Written from Microsoft's description of the algorithm. The range and the condition are signed too, so each request has
//! its own signature. HMAC and SHA-256 are those of `ring`.

use crate::access::Header;
use crate::{Secret, Url, time};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use std::time::SystemTime;

/// The version of the protocol.
const API_VERSION: &str = "2021-08-06";

/// The header `Authorization`. `own` are the headers of the store, `added` those of the client.
pub(super) fn authorization(
    url: &Url,
    account: &str,
    key: &[u8],
    own: &[(&'static str, String)],
    added: &[Header],
) -> Secret {
    let to_sign = string_to_sign(url.path(), account, own, added);
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), to_sign.as_bytes());
    Secret(format!("SharedKey {account}:{}", STANDARD.encode(signature)))
}

/// The headers of the store that every request has, in their order.
pub(super) fn own_headers(now: SystemTime) -> Vec<(&'static str, String)> {
    vec![("x-ms-date", time::http(now)), ("x-ms-version", API_VERSION.to_string())]
}

fn string_to_sign(path: &str, account: &str, own: &[(&'static str, String)], added: &[Header]) -> String {
    let find = |name: &str| {
        let found = added.iter().find(|(added, _)| *added == name);
        found.map_or("", |(_, value)| value.trim())
    };
    // The encoding, language, length, MD5 and type of a body, and the date, which is in a header of the store.
    let body_and_date = "\n".repeat(6);
    let conditions = ["if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"];
    let conditions: String = conditions.iter().map(|name| format!("{}\n", find(name))).collect();
    let headers: String = own.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    format!("GET\n{body_and_date}{conditions}{headers}/{account}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of the emulator, which its documentation has.
    const KEY: &str =
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

    fn sign(url: &str, account: &str, added: &[Header]) -> String {
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_435_361_597);
        let own = [("x-ms-date", time::http(now)), ("x-ms-version", "2015-02-21".to_string())];
        authorization(&Url::parse(url).unwrap(), account, &STANDARD.decode(KEY).unwrap(), &own, added).0
    }

    /// The form of the example in "Authorize with Shared Key", of a GET without a body in version 2015-02-21.
    #[test]
    fn what_is_signed_has_the_documented_form() {
        let own = [
            ("x-ms-date", "Fri, 26 Jun 2015 23:39:12 GMT".to_string()),
            ("x-ms-version", "2015-02-21".to_string()),
        ];
        assert_eq!(
            string_to_sign("/mycontainer/x", "myaccount", &own, &[]),
            "GET\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n\
             /myaccount/mycontainer/x"
        );
        let asked = [("range", "bytes=0-9".to_string()), ("if-match", "\"v\"".to_string())];
        assert!(
            string_to_sign("/c/x", "a", &own, &asked)
                .starts_with("GET\n\n\n\n\n\n\n\n\"v\"\n\n\nbytes=0-9\nx-ms-date:")
        );
    }

    /// The same requests as Microsoft's library for Python signs them, which sends ranges in a header of the store.
    #[test]
    fn signatures_are_those_of_the_library_for_python() {
        let asked = [("if-match", "\"0x8D4BCC2E4835CD0\"".to_string())];
        assert_eq!(
            sign(
                "https://devstoreaccount1.blob.core.windows.net/images/a%20b/app.erofs",
                "devstoreaccount1",
                &asked
            ),
            "SharedKey devstoreaccount1:EI23rdO/2FeaNiSMKn/S8x34zXbzm2wKJLGVtH9SHrY="
        );
        assert_eq!(
            sign("http://127.0.0.1:10000/devstoreaccount1/images/app.erofs", "devstoreaccount1", &[]),
            "SharedKey devstoreaccount1:ljH0DX/2YAU5lxO3phwW5Lc78RZCdIx10URSBR6c58w="
        );
    }
}
