//! The contents of a registry, for tests: manifests and blobs by their digests.

#![allow(dead_code, reason = "each test program uses a part of this module")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::server::{Fault, Object, Request, Server};
use std::collections::HashMap;
use std::sync::Arc;

/// The media types of an image and of an index.
pub const IMAGE: &str = "application/vnd.oci.image.manifest.v1+json";
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The media type of a layer.
pub const EROFS: &str = "application/vnd.erofs.layer.v1";

/// The repository of the tests.
pub const NAME: &str = "me/app";

/// The digest of bytes, by the program sha256sum, which is not the code under test.
pub fn digest(bytes: &[u8]) -> String {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    format!("sha256:{}", String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap())
}

/// A descriptor in JSON, with more members behind it.
pub fn descriptor(media_type: &str, bytes: &[u8], more: &str) -> String {
    let (digest, len) = (digest(bytes), bytes.len());
    format!("{{\"mediaType\": \"{media_type}\", \"digest\": \"{digest}\", \"size\": {len}{more}}}")
}

/// A manifest of these layers.
pub fn image(layers: &[String]) -> String {
    format!("{{\"schemaVersion\": 2, \"mediaType\": \"{IMAGE}\", \"layers\": [{}]}}", layers.join(", "))
}

/// An index of these manifests.
pub fn index(manifests: &[String]) -> String {
    format!("{{\"schemaVersion\": 2, \"mediaType\": \"{INDEX}\", \"manifests\": [{}]}}", manifests.join(", "))
}

/// Manifests by tag and by digest, and what is sent for them.
#[derive(Clone, Default)]
pub struct Manifests(HashMap<String, (String, Vec<u8>)>);

impl Manifests {
    /// Adds a manifest by its digest, and by a tag if that is not empty.
    pub fn add(&mut self, tag: &str, media_type: &str, text: &str) {
        for target in [tag.to_string(), digest(text.as_bytes())] {
            self.0.insert(target, (media_type.to_string(), text.as_bytes().to_vec()));
        }
    }

    /// The same answer for a name that it does not belong to.
    pub fn add_as(&mut self, target: &str, text: &str) {
        self.0.insert(target.to_string(), (IMAGE.to_string(), text.as_bytes().to_vec()));
    }

    /// The answer to a request for a manifest; nothing for other paths.
    pub fn answer(&self, request: &Request) -> Fault {
        let Some(target) = request.path.strip_prefix(&format!("/v2/{NAME}/manifests/")) else {
            return Fault::None;
        };
        assert!(request.headers["accept"].contains(IMAGE) && request.headers["accept"].contains(INDEX));
        match self.0.get(target) {
            Some((media_type, text)) => {
                Fault::Answer(200, format!("Content-Type: {media_type}\r\n"), text.clone())
            }
            None => Fault::Answer(404, String::new(), b"{\"errors\":[]}".to_vec()),
        }
    }
}

/// Puts a blob on the server, without a version, as registries may.
pub fn put_blob(server: &Server, bytes: &[u8]) {
    let object = Object { bytes: Arc::new(bytes.to_vec()), etag: None, last_modified: None };
    server.put(&format!("/v2/{NAME}/blobs/{}", digest(bytes)), object);
}

/// A server of tokens: `GET` with the scope, and perhaps a login. Its tokens are `token-N`.
pub fn token_answer(n: u64, expires_in_s: u64) -> Fault {
    let body = format!("{{\"token\": \"token-{n}\", \"expires_in\": {expires_in_s}}}");
    Fault::Answer(200, "Content-Type: application/json\r\n".into(), body.into_bytes())
}

/// The answer to a request without the right header `Authorization`; nothing if it has it.
pub fn unauthorized(request: &Request, wanted: &str, challenge: &str) -> Option<Fault> {
    let found = request.headers.get("authorization").map(String::as_str);
    (found != Some(wanted)).then(|| {
        Fault::Answer(401, format!("WWW-Authenticate: {challenge}\r\n"), b"{\"errors\":[]}".to_vec())
    })
}
