//! The media of an image: what commands and the server of a mount open, and how.
//!
//! These are plain data. `pagefold-server` opens them, in one place for commands and servers. A server gets them with its
//! configuration, over the socket of its start, and so gets credentials: they are in no file, on no command line and in
//! no log.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// The environment variable with the value of the header `Authorization`. Commands read it; servers do not get it.
pub const AUTHORIZATION_VARIABLE: &str = "PAGEFOLD_HTTP_AUTHORIZATION";

/// Environment variables with secrets, which commands read, and servers do not get.
pub const SECRET_VARIABLES: [&str; 12] = [
    AUTHORIZATION_VARIABLE,
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_CLIENT_SECRET",
    "IDENTITY_HEADER",
];

/// The end of the location of the Merkle tree in the manifest of an image in a registry.
pub const REGISTRY_TREE_SUFFIX: &str = "#verity";

/// The schemes of locations that are no paths.
pub const SCHEMES: [&str; 7] = ["http", "https", "s3", "az", "gs", "oci", "oci+http"];
/// Those of registries.
const REGISTRIES: [&str; 2] = ["oci", "oci+http"];
/// Those of buckets, whose objects have any characters in their names.
const BUCKETS: [&str; 3] = ["s3", "az", "gs"];

/// An image with its devices, how they are verified, and how servers are asked for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaConfig {
    /// The file or object with the image.
    pub image: Location,
    /// The byte of it at which the image begins, which ends with it.
    #[serde(default)]
    pub offset_bytes: u64,
    /// Its further devices, in the order of its device table.
    pub devices: Vec<Location>,
    /// The digests that all bytes must belong to; `None` if nothing is verified.
    pub verity: Option<VerityConfig>,
    /// For locations on servers.
    pub remote: RemoteConfig,
}

/// The place of an image, a device or a Merkle tree.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Location {
    /// A file or a block device.
    File(#[serde(with = "crate::path")] PathBuf),
    /// An object on a server: a text that begins with `http://`, `https://`, `s3://`, `az://`, `gs://` or `oci://`.
    Url(String),
}

/// The digests of an image and its devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerityConfig {
    /// The digest of the image, then of each device, as text.
    pub digests: Vec<String>,
    /// The Merkle trees, in the same order. Those that are not named are beside the images.
    pub trees: Vec<Location>,
    /// The salt of all digests, in hexadecimal.
    pub salt: String,
}

/// How servers are asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteConfig {
    /// The longest time of a read, milliseconds.
    pub timeout_ms: u64,
    /// Whether to fetch ahead of programs that read in order.
    pub read_ahead: bool,
    /// The value of the header `Authorization`, for the server of the image.
    pub authorization: Option<Secret>,
    /// Settings and credentials of stores, such as `s3://` and `oci://`: a text that `pagefold-remote` makes and reads. `None` if no
    /// location needs them.
    #[serde(default)]
    pub stores: Option<Secret>,
    /// Where ranges that were read are kept on disk; `None` for nowhere.
    pub cache: Option<CacheConfig>,
    /// Whether all of the image is read, so that it may be downloaded whole where its server answers no range requests.
    #[serde(default)]
    pub takes_whole: bool,
}

/// A cache of remote images on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheConfig {
    /// The folder, an absolute path.
    #[serde(with = "crate::path")]
    pub folder: PathBuf,
    /// The largest size of its files, bytes.
    pub size_bytes: u64,
}

/// A text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl Default for RemoteConfig {
    fn default() -> Self {
        RemoteConfig {
            timeout_ms: 30_000,
            read_ahead: true,
            authorization: None,
            stores: None,
            cache: None,
            takes_whole: false,
        }
    }
}

impl MediaConfig {
    /// An image in a file, without further devices, not verified.
    pub fn of(image: PathBuf) -> Self {
        let (image, remote) = (Location::File(image), RemoteConfig::default());
        MediaConfig { image, offset_bytes: 0, devices: Vec::new(), verity: None, remote }
    }

    /// The image and its devices.
    pub fn all(&self) -> impl Iterator<Item = &Location> {
        std::iter::once(&self.image).chain(&self.devices)
    }
}

impl Location {
    /// The location with `suffix` after its name: before the query of a URL. Of an image in a
    /// registry, it is the location of the Merkle tree in its manifest, whatever the suffix.
    pub fn with_suffix(&self, suffix: &str) -> Self {
        match self {
            Location::File(path) => {
                let mut name = path.as_os_str().to_os_string();
                name.push(suffix);
                Location::File(name.into())
            }
            Location::Url(name) if has_scheme(name, &REGISTRIES) => {
                Location::Url(format!("{name}{REGISTRY_TREE_SUFFIX}"))
            }
            Location::Url(name) if has_scheme(name, &BUCKETS) => Location::Url(format!("{name}{suffix}")),
            Location::Url(url) => {
                let (path, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
                Location::Url(format!("{path}{suffix}{query}"))
            }
        }
    }

    /// Whether it is in a registry.
    pub fn is_in_registry(&self) -> bool {
        matches!(self, Location::Url(name) if has_scheme(name, &REGISTRIES))
    }

    /// The name for people, reports and state files: a URL without its query, which may be a signature, and without a
    /// user and password.
    pub fn name(&self) -> PathBuf {
        let url = match self {
            Location::File(path) => return path.clone(),
            // A signed URL that was typed as the name of an object: the store refuses it or has no such object.
            Location::Url(name) if has_signature(name) => {
                let (name, _) = name.split_once('?').unwrap_or((name, ""));
                return format!("{}?...", without_user(name)).into();
            }
            // Keys of buckets have any characters, and no secrets. A user and password is refused later.
            Location::Url(name) if has_scheme(name, &BUCKETS) || has_scheme(name, &REGISTRIES) => {
                return without_user(name).into();
            }
            Location::Url(url) => url,
        };
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (path, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
        let authority_end = path.find('/').unwrap_or(path.len());
        let host_start = path[..authority_end].rfind('@').map_or(0, |at| at + 1);
        let query = if query.is_empty() { "" } else { "?..." };
        format!("{scheme}://{}{query}", &path[host_start..]).into()
    }
}

/// Whether the name of an object in a bucket has the query of a signed URL: `sig=` of Azure, `X-Amz-Signature=` and
/// `X-Goog-Signature=`.
fn has_signature(name: &str) -> bool {
    let query = name.split_once('?').map(|(_, query)| query.to_ascii_lowercase());
    has_scheme(name, &BUCKETS)
        && query.is_some_and(|query| query.contains("sig=") || query.contains("signature="))
}

/// The name of an object of a store, without a user and password before the bucket or registry.
fn without_user(name: &str) -> String {
    let (scheme, rest) = name.split_once("://").unwrap_or_default();
    let authority_end = rest.find('/').unwrap_or(rest.len());
    let start = rest[..authority_end].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}", &rest[start..])
}

impl From<OsString> for Location {
    fn from(text: OsString) -> Self {
        let is_url = text.to_str().is_some_and(|text| has_scheme(text, &SCHEMES));
        match text.into_string() {
            Ok(url) if is_url => Location::Url(url),
            Ok(path) => Location::File(path.into()),
            Err(path) => Location::File(path.into()),
        }
    }
}

fn has_scheme(text: &str, schemes: &[&str]) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| schemes.iter().any(|known| known.eq_ignore_ascii_case(scheme)))
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name().display())
    }
}

/// As [`Display`](fmt::Display): a query is not shown.
impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_urls_or_paths_and_their_names_hide_secrets() {
        let location = |text: &str| Location::from(OsString::from(text));
        assert_eq!(location("http:/x"), Location::File("http:/x".into()));
        assert_eq!(location("ftp://host/x"), Location::File("ftp://host/x".into()));
        let signed = location("HTTPS://me:word@host/a/b@c?signature=abc");
        assert_eq!(signed.to_string(), "HTTPS://host/a/b@c?...");
        assert!(!format!("{signed:?} {:?}", Secret("abc".into())).contains("abc"));
        assert_eq!(location("http://host").to_string(), "http://host");
        assert_eq!(location("oci://me:word@host/x@sha256:1").to_string(), "oci://host/x@sha256:1");
        assert_eq!(location("s3://bucket/a@b?c").to_string(), "s3://bucket/a@b?c");
        let signed = location("az://c/a/b?sv=1&sig=abc%3D");
        assert_eq!(signed.to_string(), "az://c/a/b?...");
        assert_eq!(signed.with_suffix(".verity").to_string(), "az://c/a/b?...");
        assert!(!format!("{signed:?}").contains("abc"));
        assert_eq!(location("GS://b/a?X-Goog-Signature=abc").to_string(), "GS://b/a?...");
        assert_eq!(location("s3://b/sig=1?x").to_string(), "s3://b/sig=1?x");
        assert_eq!(location("http://host/x?y").with_suffix(".v"), location("http://host/x.v?y"));
        assert_eq!(location("/x?y").with_suffix(".v"), location("/x?y.v"));
        assert_eq!(location("S3://bucket/a?b").with_suffix(".v").to_string(), "S3://bucket/a?b.v");
        assert_eq!(location("oci://host/a:1").with_suffix(".v").to_string(), "oci://host/a:1#verity");
        assert_eq!(location("az://c/a?b").with_suffix(".v").to_string(), "az://c/a?b.v");
        assert_eq!(location("GS://b/a#b").with_suffix(".v").to_string(), "GS://b/a#b.v");
        assert_eq!(location("s3:/x"), Location::File("s3:/x".into()));
        for (name, is_in_registry) in
            [("oci://h/a:1", true), ("OCI+http://h/a:1", true), ("http://h/a", false), ("oci+http", false)]
        {
            assert_eq!(location(name).is_in_registry(), is_in_registry, "{name}");
        }
        let secret = || Some(Secret("abc".into()));
        let config = RemoteConfig { authorization: secret(), stores: secret(), ..RemoteConfig::default() };
        assert!(!format!("{config:?}").contains("abc"));
        assert_eq!(
            serde_json::from_str::<RemoteConfig>(&serde_json::to_string(&config).unwrap()).unwrap(),
            config
        );
    }
}
