//! The names of images in registries.

use crate::Url;
use std::fmt;

/// The registry that `docker.io` means.
const DOCKER_HUB: &str = "registry-1.docker.io";
/// The schemes of names: by TLS, and without it.
const SCHEME: &str = "oci";
const PLAIN_SCHEME: &str = "oci+http";
/// The longest name, bytes, and the longest tag.
const MAX_NAME_BYTES: usize = 255;
const MAX_TAG_BYTES: usize = 128;

/// Why a text is no name of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// It begins neither with `oci://` nor with `oci+http://`.
    #[error("the name of an image in a registry begins with oci://, or oci+http:// for one without TLS")]
    Scheme,
    /// No registry.
    #[error("oci:// is followed by the host of a registry, then '/' and a name")]
    Registry,
    /// The name has other characters than names have.
    #[error("a name is of lower-case letters, digits, and '.', '_', '-' or '/' between them")]
    Name,
    /// The tag has other characters than tags have.
    #[error("a tag is of letters, digits, '.', '_' and '-'")]
    Tag,
    /// Not a digest of SHA-256.
    #[error("a digest is sha256: and 64 hexadecimal digits in lower case")]
    Digest,
}

/// The name of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciReference {
    /// Whether the registry is asked by `http`, wherever it is.
    pub is_plain: bool,
    /// As it was written: host, and perhaps port.
    pub registry: String,
    /// The repository.
    pub name: String,
    /// A tag, or a digest if there is a `:` in it.
    pub target: String,
}

impl OciReference {
    /// Parses `oci://registry/name`, with `:tag`, `@sha256:...` or both after it. The digest wins; the tag is `latest` if
    /// there is neither.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let (scheme, rest) = text.split_once("://").ok_or(ReferenceError::Scheme)?;
        let is_plain = scheme.eq_ignore_ascii_case(PLAIN_SCHEME);
        if !is_plain && !scheme.eq_ignore_ascii_case(SCHEME) {
            return Err(ReferenceError::Scheme);
        }
        let (registry, rest) = rest.split_once('/').ok_or(ReferenceError::Registry)?;
        // It becomes a part of a URL.
        let is_host = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:[]".contains(&b));
        if registry.is_empty() || !is_host(registry) || Url::parse(&format!("https://{registry}/")).is_err() {
            return Err(ReferenceError::Registry);
        }
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) if is_digest(digest) => (rest, Some(digest)),
            Some(_) => return Err(ReferenceError::Digest),
            None => (rest, None),
        };
        let (name, tag) = match rest.split_once(':') {
            Some((name, tag)) if is_tag(tag) => (name, tag),
            Some(_) => return Err(ReferenceError::Tag),
            None => (rest, "latest"),
        };
        if name.len() > MAX_NAME_BYTES || !name.split('/').all(is_component) {
            return Err(ReferenceError::Name);
        }
        // Images of the hub without an owner are in this folder.
        let folder = if registry == "docker.io" && !name.contains('/') { "library/" } else { "" };
        let (registry, name) = (registry.to_ascii_lowercase(), format!("{folder}{name}"));
        Ok(OciReference { is_plain, registry, name, target: digest.unwrap_or(tag).to_string() })
    }

    /// Registry and repository, without tag and digest.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.registry, self.name)
    }

    /// The URLs of the registry, in the order in which they are tried: one on this machine may speak either scheme.
    pub(super) fn servers(&self) -> Result<Vec<Url>, crate::UrlError> {
        let host = if self.registry == "docker.io" { DOCKER_HUB } else { &self.registry };
        let of = |scheme: &str| Url::parse(&format!("{scheme}://{host}/"));
        let (plain, secure) = (of("http")?, of("https")?);
        Ok(match (self.is_plain, secure.is_loopback()) {
            (true, _) => vec![plain],
            (false, true) => vec![plain, secure],
            (false, false) => vec![secure],
        })
    }
}

impl fmt::Display for OciReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.target.contains(':') { '@' } else { ':' };
        let scheme = if self.is_plain { PLAIN_SCHEME } else { SCHEME };
        write!(f, "{scheme}://{}/{}{mark}{}", self.registry, self.name, self.target)
    }
}

/// Whether a text is a digest that this crate computes.
pub(super) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

fn is_tag(text: &str) -> bool {
    (1..=MAX_TAG_BYTES).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && !text.starts_with(['.', '-'])
}

fn is_component(text: &str) -> bool {
    let is_letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.bytes().all(|b| is_letter(b) || b"._-".contains(&b))
        && text.bytes().next().is_some_and(is_letter)
        && text.bytes().last().is_some_and(is_letter)
        && !text.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_are_parsed_or_refused() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for (text, registry, name, target) in [
            ("oci://ghcr.io/me/app:1.0", "ghcr.io", "me/app", "1.0"),
            ("OCI://LOCALHOST:5000/app", "localhost:5000", "app", "latest"),
            ("oci://[::1]:5000/a/b", "[::1]:5000", "a/b", "latest"),
            ("oci://docker.io/debian:12", "docker.io", "library/debian", "12"),
            (&format!("oci://host/app:1@{digest}"), "host", "app", &digest),
        ] {
            let parsed = OciReference::parse(text).unwrap();
            let parts = (parsed.registry.as_str(), parsed.name.as_str(), parsed.target.as_str());
            assert_eq!(parts, (registry, name, target));
            assert_eq!(OciReference::parse(&parsed.to_string()), Ok(parsed));
        }
        for (text, error) in [
            ("https://host/app", ReferenceError::Scheme),
            ("oci://host", ReferenceError::Registry),
            ("oci:///app", ReferenceError::Registry),
            ("oci://me@host/app", ReferenceError::Registry),
            ("oci://host?x/app", ReferenceError::Registry),
            ("oci://host/", ReferenceError::Name),
            ("oci://host/App", ReferenceError::Name),
            ("oci://host/a/../b", ReferenceError::Name),
            ("oci://host/a//b", ReferenceError::Name),
            ("oci://host/a?b", ReferenceError::Name),
            ("oci://host/a:b/c", ReferenceError::Tag),
            ("oci://host/a:", ReferenceError::Tag),
            ("oci://host/a@sha256:00", ReferenceError::Digest),
            ("oci://host/a@sha512:00", ReferenceError::Digest),
        ] {
            assert_eq!(OciReference::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn registries_of_this_machine_are_asked_by_both_schemes() {
        let servers = |text: &str| {
            let servers = OciReference::parse(text).unwrap().servers().unwrap();
            servers.iter().map(|url| url.as_str().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(servers("oci://localhost:5000/a"), ["http://localhost:5000/", "https://localhost:5000/"]);
        assert_eq!(servers("oci://127.0.0.1/a"), ["http://127.0.0.1/", "https://127.0.0.1/"]);
        assert_eq!(servers("oci+http://localhost:5000/a"), ["http://localhost:5000/"]);
        assert_eq!(servers("OCI+HTTP://10.0.0.1:5000/a"), ["http://10.0.0.1:5000/"]);
        assert_eq!(servers("oci://10.0.0.1:5000/a"), ["https://10.0.0.1:5000/"]);
        assert_eq!(servers("oci://docker.io/a"), ["https://registry-1.docker.io/"]);
        let plain = OciReference::parse("oci+http://host/a:1").unwrap();
        assert_eq!(plain.to_string(), "oci+http://host/a:1");
    }
}
