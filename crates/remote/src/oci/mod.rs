//! Images in registries: `oci://registry/name:tag`, and `oci://registry/name@sha256:...`.
//!
//! [`resolve`] asks for the manifest, chooses the platform if it is an index, and finds the layer that is an EROFS
//! image (`manifest.rs`). A manifest that is named by a digest is compared with it, as are those that an index names.
//! The layer is read by ranges, which a digest of the whole blob cannot verify, unless the first request brings all of
//! it; a layer may come with the digest of fs-verity and a Merkle tree, and then the caller can. `registry.rs` asks,
//! with a token or a password as the registry wants it (`challenge.rs`); logins are those of docker and podman
//! (`login_files.rs`, `docker_config.rs`).
//!
//! A registry on this machine is asked by `http`, and if that fails by `https`: registries for tests speak either. Others
//! are asked by `https`, unless the name begins with `oci+http://`. A login is sent to no other machine without TLS.
//!
//! [`resolve_layers`] finds all layers, archives too, for a program that merges them (`layers.rs`).
//!
//! [`push()`] publishes an image (`push.rs`).
//!
//! Not here: other digests than SHA-256.

mod challenge;
mod docker_config;
mod layers;
mod login_files;
mod manifest;
mod push;
mod reference;
mod registry;

pub use challenge::Challenge;
pub use docker_config::Login;
pub use layers::{LAYERS_MAX, LayerBlob, OciLayers, resolve_layers};
pub use login_files::login;
pub use manifest::{
    DIGEST_ANNOTATION, Descriptor, EROFS_LAYER, Layer, Manifest, ManifestError, Platform, SALT_ANNOTATION,
    TREE_LAYER, TreeLayer,
};
pub use push::{ImageUpload, LIST_TYPE, Pushed, Upload, check_target, push};
pub use reference::{OciReference, ReferenceError};

use crate::access::{Access, Header, Reaction, Refusal, SignedRequest};
use crate::answer::AttemptError;
use crate::retry::{Deadline, until_deadline};
use crate::{Options, RemoteError, RemoteSource, Url};
use registry::Registry;
use std::sync::Arc;
use std::time::Duration;

/// Indexes inside of indexes that are followed.
const MAX_DEPTH: usize = 3;
/// The actions that tokens permit.
const PULL: &str = "pull";
const PUSH: &str = "pull,push";

/// An image in a registry: its manifest has been read.
pub struct OciImage {
    registry: Arc<Registry>,
    layer: Layer,
    manifest_digest: String,
}

/// Reads the manifest, and finds the layer. `login` is for the registry; without one the user is anonymous.
pub fn resolve(
    reference: &OciReference,
    login: Option<&Login>,
    platform: &Platform,
    timeout: Duration,
) -> Result<OciImage, RemoteError> {
    let registries = registries_of(reference, login, timeout, PULL)?;
    let deadline = Deadline::after(timeout);
    let resolve_by = |registry: &Arc<Registry>| {
        let (manifest_digest, manifest) = manifest_of(registry, platform, &deadline)?;
        let layer = manifest.layer().map_err(|e| AttemptError::refused(e.to_string()))?;
        Ok(OciImage { registry: registry.clone(), layer, manifest_digest })
    };
    until_deadline(&deadline, std::thread::sleep, || by_first(&registries, resolve_by))
}

/// The registry by each scheme that it may speak.
fn registries_of(
    reference: &OciReference,
    login: Option<&Login>,
    timeout: Duration,
    actions: &'static str,
) -> Result<Vec<Arc<Registry>>, RemoteError> {
    let servers = reference.servers().map_err(|e| RemoteError::SetUp { what: e.to_string() })?;
    let registry = |server| Registry::new(reference, server, login, timeout, actions).map(Arc::new);
    servers.into_iter().map(registry).collect()
}

/// Asks the first of these registries, which are one by several schemes, and the next if that does not speak its scheme.
fn by_first<T>(
    registries: &[Arc<Registry>],
    ask: impl Fn(&Arc<Registry>) -> Result<T, AttemptError>,
) -> Result<T, AttemptError> {
    let mut first = None;
    for registry in registries {
        let failure = match ask(registry) {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        match first {
            None if speaks_otherwise(&failure) => first = Some(failure),
            None => return Err(failure),
            // The first one's failure says more, unless the second one speaks TLS.
            Some(first) if is_unanswered(&failure) => return Err(first),
            Some(_) => return Err(failure),
        }
    }
    Err(first.unwrap_or_else(|| AttemptError::refused("there is no registry")))
}

/// The registry by the scheme that it speaks, for a push: an answer about the tag, whichever, shows that.
fn speaking(
    reference: &OciReference,
    login: Option<&Login>,
    timeout: Duration,
) -> Result<Arc<Registry>, RemoteError> {
    let registries = registries_of(reference, login, timeout, PUSH)?;
    if let [only] = &registries[..] {
        return Ok(only.clone());
    }
    let deadline = Deadline::after(timeout);
    let ask = |registry: &Arc<Registry>| match registry.manifest(&reference.target, None, &deadline) {
        Err(failure) if speaks_otherwise(&failure) || is_unanswered(&failure) => Err(failure),
        _ => Ok(registry.clone()),
    };
    until_deadline(&deadline, std::thread::sleep, || by_first(&registries, ask))
}

/// Whether the failure is that of a server which is asked by the wrong scheme: an answer to what it took for no request, or a
/// connection that it ended.
fn speaks_otherwise(failure: &AttemptError) -> bool {
    let (AttemptError::Permanent(error) | AttemptError::Transient { error, .. }) = failure;
    matches!(error, RemoteError::Connection { .. } | RemoteError::Denied { status: 400, .. })
}

/// Whether the failure is that of a server which does not answer, or does not speak TLS.
fn is_unanswered(failure: &AttemptError) -> bool {
    matches!(
        failure,
        AttemptError::Transient { error: RemoteError::Connection { .. }, .. }
            | AttemptError::Permanent(RemoteError::NotTls)
    )
}

/// Reads the manifest of the image for a platform, and returns its digest too.
fn manifest_of(
    registry: &Registry,
    platform: &Platform,
    deadline: &Deadline,
) -> Result<(String, Manifest), AttemptError> {
    let (mut digest, mut manifest) = registry.manifest(&registry.reference().target, None, deadline)?;
    for _ in 0..=MAX_DEPTH {
        let entry = match &manifest {
            Manifest::Image { .. } => return Ok((digest, manifest)),
            Manifest::Index(_) => manifest
                .for_platform(platform)
                .map_err(|e| AttemptError::Permanent(RemoteError::Missing { what: e.to_string() }))?,
        };
        let len_bytes = entry.len_bytes;
        (digest, manifest) = registry.manifest(&entry.digest.clone(), Some(len_bytes), deadline)?;
    }
    Err(AttemptError::refused(format!("there are indexes inside of indexes, more than {MAX_DEPTH} deep")))
}

impl OciImage {
    /// The layer that is the image.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// The digest of the manifest, `sha256:HEX`: the name of the image that does not change.
    pub fn manifest_digest(&self) -> &str {
        &self.manifest_digest
    }

    /// Opens the image.
    pub fn open(&self, options: &Options) -> Result<RemoteSource, RemoteError> {
        open_blob(&self.registry, &self.layer.image, options)
    }

    /// Opens the Merkle tree; `None` if there is none.
    pub fn open_tree(&self, options: &Options) -> Option<Result<RemoteSource, RemoteError>> {
        self.layer.tree.as_ref().map(|tree| open_blob(&self.registry, &tree.blob, options))
    }
}

/// Opens a blob, which is read by ranges.
fn open_blob(
    registry: &Arc<Registry>,
    blob: &Descriptor,
    options: &Options,
) -> Result<RemoteSource, RemoteError> {
    let url = registry.blob_url(&blob.digest)?;
    let access = BlobAccess { registry: registry.clone(), url, blob: blob.clone() };
    RemoteSource::open_by(Arc::new(access), options)
}

/// Access to one blob.
struct BlobAccess {
    registry: Arc<Registry>,
    url: Url,
    blob: Descriptor,
}

impl Access for BlobAccess {
    fn name(&self) -> String {
        self.registry.reference().to_string()
    }

    fn server(&self) -> Url {
        self.url.clone()
    }

    fn request(&self, _: &[Header], deadline: &Deadline) -> Result<SignedRequest, AttemptError> {
        let (authorization, generation) = self.registry.authorization(deadline)?;
        Ok(SignedRequest::with_authorization(&self.url, authorization, generation))
    }

    fn refused(&self, request: &SignedRequest, refusal: &Refusal<'_>) -> Reaction {
        match refusal.status {
            401 if self.registry.challenged(refusal.challenge, request.generation) => {
                Reaction::Renew(self.registry.denial(401))
            }
            401 | 403 => Reaction::Fail(self.registry.denial(refusal.status)),
            404 => Reaction::Fail(RemoteError::Missing {
                what: "the registry has the manifest, and not its layer".to_string(),
            }),
            _ => Reaction::Default,
        }
    }

    fn fixed_len_bytes(&self) -> Option<u64> {
        Some(self.blob.len_bytes)
    }

    fn content_digest(&self) -> Option<&str> {
        Some(&self.blob.digest)
    }
}
