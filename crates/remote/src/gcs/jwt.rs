//! Signed claims (JSON Web Tokens, RFC 7519, with RS256), which a service account exchanges for tokens.

use crate::Secret;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::json;
use std::time::SystemTime;

/// The scope of tokens.
const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_only";
/// The life of the claims, seconds: the longest that Google accepts.
const LIFE_S: u64 = 3600;

/// A private key of RSA.
pub(super) struct SigningKey(RsaKeyPair);

impl SigningKey {
    /// Parses a key in PEM. The error does not quote it.
    pub(super) fn parse(pem: &Secret) -> Result<Self, String> {
        let body = |name: &str| {
            let (_, rest) = pem.0.split_once(&format!("-----BEGIN {name}-----"))?;
            let (body, _) = rest.split_once(&format!("-----END {name}-----"))?;
            let body: String = body.split_ascii_whitespace().collect();
            STANDARD.decode(body).ok()
        };
        let pair = match (body("PRIVATE KEY"), body("RSA PRIVATE KEY")) {
            (Some(der), _) => RsaKeyPair::from_pkcs8(&der),
            (None, Some(der)) => RsaKeyPair::from_der(&der),
            (None, None) => return Err("has no private key in PEM".to_string()),
        };
        pair.map(SigningKey).map_err(|e| format!("has a private key of RSA that is refused: {e}"))
    }

    /// The claims of a service account for the server of tokens at `audience`, signed.
    pub(super) fn assertion(
        &self,
        email: &str,
        key_id: &str,
        audience: &str,
        now: SystemTime,
    ) -> Result<Secret, String> {
        let now_s = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let header = json!({"alg": "RS256", "typ": "JWT", "kid": key_id});
        let claims =
            json!({"iss": email, "scope": SCOPE, "aud": audience, "iat": now_s, "exp": now_s + LIFE_S});
        let encode = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", encode(&header), encode(&claims));
        let signature = self.sign(&text)?;
        Ok(Secret(format!("{text}.{signature}")))
    }

    fn sign(&self, text: &str) -> Result<String, String> {
        let mut signature = vec![0; self.0.public().modulus_len()];
        self.0
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
            .map_err(|_| "signing with the service account's key failed".to_string())?;
        Ok(URL_SAFE_NO_PAD.encode(signature))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the signature of RFC 7515, A.2; the key as PKCS#8.
    const KEY: &str = include_str!("testdata/rfc7515.pem");
    const SIGNED: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    const SIGNATURE: &str = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";

    #[test]
    fn signatures_are_those_of_rfc_7515() {
        let key = SigningKey::parse(&Secret(KEY.into())).unwrap();
        assert_eq!(key.sign(SIGNED).unwrap(), SIGNATURE);
    }

    #[test]
    fn claims_name_the_account_the_audience_and_an_hour() {
        let key = SigningKey::parse(&Secret(KEY.into())).unwrap();
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        let Secret(assertion) = key.assertion("a@b", "k", "https://host/token", now).unwrap();
        let parts: Vec<_> = assertion.split('.').collect();
        let json = |n: usize| -> serde_json::Value {
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[n]).unwrap()).unwrap()
        };
        assert_eq!(json(0), json!({"alg": "RS256", "typ": "JWT", "kid": "k"}));
        let claims = json(1);
        assert_eq!((&claims["iss"], &claims["aud"]), (&json!("a@b"), &json!("https://host/token")));
        assert_eq!((&claims["iat"], &claims["exp"]), (&json!(1_000_000), &json!(1_003_600)));
        assert_eq!(parts[2], key.sign(&format!("{}.{}", parts[0], parts[1])).unwrap());
    }

    #[test]
    fn other_texts_than_keys_are_refused_and_not_shown() {
        let cut = KEY.replace("\nMII", "\nhidden");
        for text in ["", "hidden", "-----BEGIN PRIVATE KEY-----\nhidden!\n-----END PRIVATE KEY-----", &cut] {
            let error = SigningKey::parse(&Secret(text.into())).err().unwrap();
            assert!(error.starts_with("has ") && !error.contains("hidden"), "{error}");
        }
    }
}
