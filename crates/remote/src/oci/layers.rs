//! All layers of an image in a registry: archives, and EROFS images.
//!
//! The configuration of an image has for each layer the digest of its bytes before they were compressed (`diff_id`), which
//! programs know the layer by. Each blob has the digest of its bytes as its name. The reader of a layer compares both; nothing
//! here reads one.

use super::manifest::{Descriptor, EROFS_LAYER, Layer, Manifest, TREE_LAYER, checked, place, printable};
use super::reference::is_digest;
use super::registry::Registry;
use super::{Login, OciReference, PULL, Platform, by_first, manifest_of, open_blob, registries_of};
use crate::answer::AttemptError;
use crate::retry::{Deadline, until_deadline};
use crate::{Options, RemoteError, RemoteSource};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// Layers at most. Runtimes mount half as many.
pub const LAYERS_MAX: usize = 256;

/// The media types of configurations that have the digests of layers.
const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

/// An image in a registry with all its layers: manifest and configuration have been read.
pub struct OciLayers {
    registry: Arc<Registry>,
    layers: Vec<LayerBlob>,
    manifest_digest: String,
}

/// A layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerBlob {
    /// The blob, which may be compressed.
    pub blob: Descriptor,
    /// Whether the blob is an EROFS image that can be read in parts.
    pub is_image: bool,
    /// The digest of the bytes that the blob decompresses to, `sha256:HEX`, if there is a configuration that names it.
    pub diff_id: Option<String>,
}

/// Reads the manifest and the configuration of the image for a platform.
pub fn resolve_layers(
    reference: &OciReference,
    login: Option<&Login>,
    platform: &Platform,
    timeout: Duration,
) -> Result<OciLayers, RemoteError> {
    let registries = registries_of(reference, login, timeout, PULL)?;
    let deadline = Deadline::after(timeout);
    let resolve_by = |registry: &Arc<Registry>| {
        let (manifest_digest, manifest) = manifest_of(registry, platform, &deadline)?;
        let layers = layers_of(registry, &manifest, &deadline)?;
        Ok(OciLayers { registry: registry.clone(), layers, manifest_digest })
    };
    until_deadline(&deadline, std::thread::sleep, || by_first(&registries, resolve_by))
}

impl OciLayers {
    /// The layers, the lowest first.
    pub fn layers(&self) -> &[LayerBlob] {
        &self.layers
    }

    /// The digest of the manifest, `sha256:HEX`: the name of the image that does not change.
    pub fn manifest_digest(&self) -> &str {
        &self.manifest_digest
    }

    /// Opens a layer; `None` if there is none of this number.
    pub fn open(&self, number: usize, options: &Options) -> Option<Result<RemoteSource, RemoteError>> {
        self.layers.get(number).map(|layer| open_blob(&self.registry, &layer.blob, options))
    }
}

fn layers_of(
    registry: &Registry,
    manifest: &Manifest,
    deadline: &Deadline,
) -> Result<Vec<LayerBlob>, AttemptError> {
    let refused = |what: String| AttemptError::refused(what);
    let layers: Vec<_> = manifest.entries().iter().filter(|layer| layer.media_type != TREE_LAYER).collect();
    // An artifact may have its image in a layer of any type, and other things beside it.
    let is_artifact = layers.len() == 1 || !layers.iter().all(|layer| is_layer(&layer.media_type));
    if let Some(Layer { image: blob, .. }) = manifest.layer().ok().filter(|_| is_artifact) {
        return Ok(vec![LayerBlob { blob, is_image: true, diff_id: None }]);
    }
    if layers.len() > LAYERS_MAX {
        return Err(refused(format!("the image has {} layers; up to {LAYERS_MAX}", layers.len())));
    }
    let diff_ids = match manifest {
        Manifest::Image { config: Some(config), .. } if CONFIGS.contains(&&*config.media_type) => {
            let config = checked(config).map_err(|e| refused(e.to_string()))?;
            let ids = diff_ids(&registry.small_blob(config, deadline)?).map_err(refused)?;
            if ids.len() != layers.len() {
                let (ids, layers) = (ids.len(), layers.len());
                return Err(refused(format!(
                    "its configuration has the digests of {ids} layers, of {layers}"
                )));
            }
            ids.into_iter().map(Some).collect()
        }
        _ => vec![None; layers.len()],
    };
    let layers = layers.into_iter().zip(diff_ids).map(|(blob, diff_id)| {
        let blob = checked(blob).map_err(|e| refused(e.to_string()))?.clone();
        if !is_layer(&blob.media_type) {
            let what = format!(
                "a layer is of the type '{}', and neither an archive nor an EROFS image",
                printable(&blob.media_type)
            );
            return Err(refused(what));
        }
        let is_image = blob.media_type == EROFS_LAYER;
        Ok(LayerBlob { blob, is_image, diff_id })
    });
    layers.collect()
}

/// Whether layers of this type are archives or EROFS images, plain or compressed. Those that are encrypted are not.
fn is_layer(media_type: &str) -> bool {
    const KINDS: [&str; 6] = [
        EROFS_LAYER,
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
    ];
    const COMPRESSIONS: [&str; 5] = ["", "+gzip", "+zstd", ".gzip", ".zstd"];
    KINDS.iter().any(|kind| media_type.strip_prefix(kind).is_some_and(|rest| COMPRESSIONS.contains(&rest)))
}

#[derive(Deserialize)]
struct RawConfig {
    rootfs: RawRootfs,
}

#[derive(Deserialize)]
struct RawRootfs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

/// The digests of layers in a configuration.
fn diff_ids(bytes: &[u8]) -> Result<Vec<String>, String> {
    let config: RawConfig = serde_json::from_slice(bytes)
        .map_err(|e| format!("its configuration is none of an image: {}", place(&e)))?;
    let ids = config.rootfs.diff_ids;
    match ids.iter().find(|id| !is_digest(id)) {
        Some(other) => Err(format!("its configuration has '{}', no digest of SHA-256", printable(other))),
        None => Ok(ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_and_images_are_layers_and_nothing_else() {
        for kind in [
            "application/vnd.oci.image.layer.v1.tar",
            "application/vnd.oci.image.layer.v1.tar+gzip",
            "application/vnd.oci.image.layer.v1.tar+zstd",
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
            "application/vnd.docker.image.rootfs.diff.tar",
            "application/vnd.erofs.layer.v1",
            "application/vnd.erofs.layer.v1+zstd",
        ] {
            assert!(is_layer(kind), "{kind}");
        }
        for kind in
            ["", "application/vnd.oci.image.layer.v1.tar+gzip+encrypted", "application/vnd.in-toto+json"]
        {
            assert!(!is_layer(kind), "{kind}");
        }
    }

    #[test]
    fn configurations_have_digests_or_are_refused() {
        let id = format!("sha256:{}", "0a".repeat(32));
        let config =
            format!("{{\"os\": \"linux\", \"rootfs\": {{\"type\": \"layers\", \"diff_ids\": [\"{id}\"]}}}}");
        assert_eq!(diff_ids(config.as_bytes()), Ok(vec![id]));
        assert_eq!(diff_ids(b"{\"rootfs\": {}}"), Ok(vec![]));
        for text in ["", "{}", "[]", "{\"rootfs\": {\"diff_ids\": [\"sha256:../../x\"]}}"] {
            assert!(diff_ids(text.as_bytes()).is_err(), "{text}");
        }
    }
}
