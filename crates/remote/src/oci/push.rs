//! Publishes an image in a registry: blobs, the configuration, and the manifest, by a tag.
//!
//! A blob that the registry has is not sent. Others are sent by one request each, which is repeated as a whole if the
//! connection breaks. The manifest comes last, so the tag names a complete image or what it named before. A list of a start
//! is an artifact that refers to the image: its manifest names that as its subject.
//!
//! Not here: removing what an interrupted push has left, which registries collect themselves.

use super::manifest::{
    DIGEST_ANNOTATION, EROFS_LAYER, MAX_MANIFEST_BYTES, SALT_ANNOTATION, TREE_LAYER, printable,
};
use super::registry::Registry;
use super::{Login, OciReference, Platform, speaking};
use crate::answer::{AttemptError, Head, follow, redirect};
use crate::encoding::digest_name;
use crate::retry::{Deadline, until_deadline};
use crate::small::{Answer, Method, SmallClient};
use crate::{RemoteError, Url};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::time::Duration;

/// The media type of a list of a start, and the type of the artifact that has one.
pub const LIST_TYPE: &str = "application/vnd.pagefold.startup-list.v1";

const IMAGE_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const IMAGE_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const BYTES: &str = "application/octet-stream";
/// Challenges that are answered for one request.
const MAX_CHALLENGES: usize = 2;
/// Attempts to send one blob: each sends all of it.
const MAX_UPLOADS: usize = 4;
/// The slowest upload that is not given up, bytes in a second.
const SLOWEST_UPLOAD: u64 = 64 << 10;

/// A file that becomes a blob.
pub struct Upload {
    /// The file, from its first byte on.
    pub file: File,
    /// Its length.
    pub len_bytes: u64,
    /// Its digest, `sha256:HEX`.
    pub digest: String,
}

/// An image to publish.
pub struct ImageUpload {
    /// The image.
    pub image: Upload,
    /// Its digest of fs-verity and salt, as texts, and its Merkle tree.
    pub tree: Option<(String, String, Upload)>,
    /// A list of a start.
    pub list: Option<Upload>,
    /// The platform, of the operating system that has EROFS.
    pub platform: Platform,
    /// Annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
}

/// The outcome of a push.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The digest of the manifest, `sha256:HEX`.
    pub manifest_digest: String,
    /// Blobs that were sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Blobs that the registry had.
    pub present: u64,
}

/// Publishes an image by the tag of `reference`. `login` is for the registry. A request without contents takes up to
/// `timeout`, and one with contents as long as they take at 64 KiB in a second besides.
pub fn push(
    reference: &OciReference,
    login: Option<&Login>,
    upload: ImageUpload,
    timeout: Duration,
) -> Result<Pushed, RemoteError> {
    check_target(reference)?;
    let ImageUpload { image, tree, list, platform, annotations } = upload;
    let lengths = [Some(&image), tree.as_ref().map(|(_, _, tree)| tree), list.as_ref()];
    let longest_bytes = lengths.into_iter().flatten().map(|upload| upload.len_bytes).max().unwrap_or(0);
    let registry = speaking(reference, login, timeout)?;
    let client =
        SmallClient::far(upload_time(timeout, longest_bytes), registry.server(), MAX_MANIFEST_BYTES)?;
    let client = client.connecting_within(timeout);
    let mut push = Push { registry: &registry, client, timeout, pushed: Pushed::default() };
    let config = config(&platform, &image.digest);
    let mut layer = descriptor(EROFS_LAYER, &image.digest, image.len_bytes);
    let mut layers = Vec::new();
    push.file(image)?;
    if let Some((digest, salt, tree)) = tree {
        layer["annotations"] = json!({ DIGEST_ANNOTATION: digest, SALT_ANNOTATION: salt });
        layers.push(descriptor(TREE_LAYER, &tree.digest, tree.len_bytes));
        push.file(tree)?;
    }
    layers.insert(0, layer);
    let mut manifest = json!({
        "schemaVersion": 2,
        "mediaType": IMAGE_MANIFEST,
        "config": push.bytes(IMAGE_CONFIG, config.to_string().as_bytes())?,
        "layers": layers,
    });
    if !annotations.is_empty() {
        manifest["annotations"] = json!(annotations);
    }
    let manifest = manifest.to_string();
    let subject = push.manifest(&reference.target, &manifest)?;
    if let Some(list) = list {
        let layer = descriptor(LIST_TYPE, &list.digest, list.len_bytes);
        push.file(list)?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": IMAGE_MANIFEST,
            "artifactType": LIST_TYPE,
            "config": push.bytes(EMPTY, b"{}")?,
            "layers": [layer],
            "subject": subject,
        });
        let manifest = manifest.to_string();
        push.manifest(&digest_of(manifest.as_bytes()), &manifest)?;
    }
    Ok(Pushed { manifest_digest: digest_of(manifest.as_bytes()), ..push.pushed })
}

/// Fails if an image cannot be published by this name: it has a digest.
pub fn check_target(reference: &OciReference) -> Result<(), RemoteError> {
    match reference.target.contains(':') {
        false => Ok(()),
        true => {
            let what = format!("{reference}: an image is pushed by a tag, and its digest follows from it");
            Err(RemoteError::SetUp { what })
        }
    }
}

/// The configuration of an image of one layer.
fn config(platform: &Platform, diff_id: &str) -> Value {
    let features = platform.os_features.clone().unwrap_or_else(|| vec!["erofs".to_string()]);
    let mut config = json!({
        "architecture": platform.architecture,
        "os": platform.os,
        "os.features": features,
        "config": {},
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
    });
    if let Some(variant) = &platform.variant {
        config["variant"] = json!(variant);
    }
    config
}

fn descriptor(media_type: &str, digest: &str, len_bytes: u64) -> Value {
    json!({ "mediaType": media_type, "digest": digest, "size": len_bytes })
}

fn digest_of(bytes: &[u8]) -> String {
    digest_name(&digest(&SHA256, bytes))
}

/// The longest time of a request that sends so many bytes.
fn upload_time(timeout: Duration, len_bytes: u64) -> Duration {
    timeout + Duration::from_secs(len_bytes / SLOWEST_UPLOAD)
}

struct Push<'r> {
    registry: &'r Registry,
    client: SmallClient,
    timeout: Duration,
    pushed: Pushed,
}

impl Push<'_> {
    /// Sends a small blob, unless the registry has it. Returns its descriptor.
    fn bytes(&mut self, media_type: &str, bytes: &[u8]) -> Result<Value, RemoteError> {
        let digest = digest_of(bytes);
        self.blob(&digest, Contents::Bytes(bytes))?;
        Ok(descriptor(media_type, &digest, bytes.len() as u64))
    }

    /// Sends a file as a blob, unless the registry has it.
    fn file(&mut self, upload: Upload) -> Result<(), RemoteError> {
        let Upload { file, len_bytes, digest } = upload;
        self.blob(&digest, Contents::File { file, len_bytes })
    }

    fn blob(&mut self, digest: &str, mut contents: Contents<'_>) -> Result<(), RemoteError> {
        let url = self.registry.blob_url(digest)?;
        let is_there = self.repeat(0, |deadline| {
            let answer = self.exchange(&url, deadline, &mut Request::Head)?;
            match answer.head.status {
                // The place of a blob, which a registry names without having it, does not exist.
                200 | 301 | 302 | 303 | 307 | 308 => Ok(true),
                404 => Ok(false),
                _ => Err(self.refused(&answer.head, &[])),
            }
        })?;
        if is_there {
            self.pushed.present += 1;
            return Ok(());
        }
        let len_bytes = contents.len_bytes();
        let mut uploads = 0;
        self.repeat(len_bytes, |deadline| {
            uploads += 1;
            // It has its own time, and repeats: a registry that limits them has got no contents yet.
            let url = self.place_of_upload(digest).map_err(AttemptError::Permanent)?;
            self.send(&url, deadline, &mut contents).map_err(|failure| match failure {
                AttemptError::Transient { error, .. } if uploads == MAX_UPLOADS => {
                    AttemptError::Permanent(unsent(error, uploads))
                }
                failure => failure,
            })
        })?;
        self.pushed.sent += 1;
        self.pushed.sent_bytes += len_bytes;
        Ok(())
    }

    /// Asks for a place for a blob, and returns the URL that its bytes are sent to.
    fn place_of_upload(&self, digest: &str) -> Result<Url, RemoteError> {
        self.repeat(0, |deadline| {
            let uploads = self.registry.uploads_url()?;
            let begun = self.exchange(&uploads, deadline, &mut Request::Begin)?;
            let location = match (begun.head.status, begun.head.get("location")) {
                (202, Some(location)) => location,
                (202, None) => return Err(AttemptError::refused("it names no place for a blob")),
                _ => return Err(self.refused(&begun.head, &begun.body)),
            };
            let place = follow(&uploads, &location, uploads.is_https())?;
            let mark = if place.as_str().contains('?') { '&' } else { '?' };
            let url = format!("{}{mark}digest={}", place.as_str(), digest.replace(':', "%3A"));
            Url::parse(&url).map_err(|e| redirect(e.to_string()))
        })
    }

    /// Sends a blob to its place.
    fn send(
        &self,
        place: &Url,
        deadline: &Deadline,
        contents: &mut Contents<'_>,
    ) -> Result<(), AttemptError> {
        let put = self.exchange(place, deadline, &mut Request::Put(BYTES, contents))?;
        match put.head.status {
            200..=204 => Ok(()),
            _ => Err(self.refused(&put.head, &put.body)),
        }
    }

    /// Sends a manifest. Returns its descriptor.
    fn manifest(&mut self, target: &str, text: &str) -> Result<Value, RemoteError> {
        self.repeat(0, |deadline| {
            let url = self.registry.manifest_url(target)?;
            let mut contents = Contents::Bytes(text.as_bytes());
            let put = self.exchange(&url, deadline, &mut Request::Put(IMAGE_MANIFEST, &mut contents))?;
            match put.head.status {
                200..=204 => Ok(()),
                _ => Err(self.refused(&put.head, &put.body)),
            }
        })?;
        Ok(descriptor(IMAGE_MANIFEST, &digest_of(text.as_bytes()), text.len() as u64))
    }

    fn repeat<T>(
        &self,
        len_bytes: u64,
        mut attempt: impl FnMut(&Deadline) -> Result<T, AttemptError>,
    ) -> Result<T, RemoteError> {
        let deadline = Deadline::after(upload_time(self.timeout, len_bytes));
        until_deadline(&deadline, std::thread::sleep, || attempt(&deadline))
    }

    /// Sends a request, and answers challenges. Another server than the registry gets no login.
    fn exchange(
        &self,
        url: &Url,
        deadline: &Deadline,
        request: &mut Request<'_, '_>,
    ) -> Result<Answer, AttemptError> {
        let is_registry = self.registry.uploads_url()?.origin() == url.origin();
        for _ in 0..=MAX_CHALLENGES {
            let (authorization, generation) = self.registry.authorization(deadline)?;
            let headers: Vec<_> = authorization
                .filter(|_| is_registry)
                .map(|value| ("authorization", value))
                .into_iter()
                .collect();
            let answer = self.client.ask(request.method()?, url, &headers, deadline)?;
            let is_challenge = answer.head.status == 401 && is_registry;
            if !is_challenge || !self.registry.challenged(answer.head.challenge().as_deref(), generation) {
                return Ok(answer);
            }
        }
        Err(AttemptError::Permanent(self.registry.denial(401)))
    }

    /// The failure of an answer, with the text that the registry sends.
    fn refused(&self, head: &Head, body: &[u8]) -> AttemptError {
        let status = head.status;
        let said = printable_text(&String::from_utf8_lossy(body));
        let said = if said.is_empty() { said } else { format!(": {said}") };
        let denied = |what: &str| RemoteError::Denied { status, what: format!("{what}{said}") };
        let error = match status {
            401 | 403 => self.registry.denial(status),
            404 => RemoteError::Missing { what: format!("the registry has no such repository{said}") },
            405 => denied("the registry takes no images"),
            413 => denied("a blob is too long for the registry"),
            _ => denied(&format!("the registry answers with status {status}")),
        };
        head.failure(error)
    }
}

/// The error of a blob that could not be sent so many times. A server that refuses a length may close the connection before
/// all of the blob is there, and its answer is lost.
fn unsent(error: RemoteError, uploads: usize) -> RemoteError {
    match error {
        RemoteError::Connection { what } => RemoteError::Connection {
            what: format!(
                "a blob could not be sent in {uploads} attempts: {what}; a proxy before the registry may limit the length of \
                 uploads (nginx: client_max_body_size)"
            ),
        },
        error => error,
    }
}

/// The requests of a push.
enum Request<'c, 'b> {
    /// Whether a blob is there.
    Head,
    /// A place for a blob.
    Begin,
    /// These contents, of this media type.
    Put(&'static str, &'c mut Contents<'b>),
}

impl Request<'_, '_> {
    /// The request with its contents, from the first byte on.
    fn method(&mut self) -> Result<Method<'_>, AttemptError> {
        Ok(match self {
            Request::Head => Method::Head,
            Request::Begin => Method::PostNothing,
            Request::Put(media_type, Contents::Bytes(bytes)) => Method::PutBytes { media_type, bytes },
            Request::Put(media_type, Contents::File { file, len_bytes }) => {
                file.seek(SeekFrom::Start(0)).map_err(|e| {
                    let what = format!("reading the file to send: {e}");
                    AttemptError::Permanent(RemoteError::SetUp { what })
                })?;
                Method::PutFile { media_type, file, len_bytes: *len_bytes }
            }
        })
    }
}

/// The contents of a blob or manifest.
enum Contents<'b> {
    Bytes(&'b [u8]),
    File { file: File, len_bytes: u64 },
}

impl Contents<'_> {
    fn len_bytes(&self) -> u64 {
        match self {
            Contents::Bytes(bytes) => bytes.len() as u64,
            Contents::File { len_bytes, .. } => *len_bytes,
        }
    }
}

fn printable_text(text: &str) -> String {
    text.split_whitespace().map(printable).collect::<Vec<_>>().join(" ").chars().take(300).collect()
}
