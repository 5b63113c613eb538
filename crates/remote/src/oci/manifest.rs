//! Manifests and indexes of registries: what they contain, and which layer is the image.
//!
//! They are JSON from a server, so nothing in them is believed before it is checked. A text that could be read both as a
//! manifest and as an index is refused, because its digest would name two things.

use super::reference::is_digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The media type of a layer that is an EROFS image.
pub const EROFS_LAYER: &str = "application/vnd.erofs.layer.v1";
/// The media type of a layer that is the Merkle tree of another one.
pub const TREE_LAYER: &str = "application/vnd.pagefold.fsverity.tree.v1";
/// The annotation of an EROFS layer with the digest of fs-verity, `sha256:HEX`.
pub const DIGEST_ANNOTATION: &str = "io.github.pagefold.fsverity.digest";
/// The annotation of an EROFS layer with the salt of the digest, in hexadecimal.
pub const SALT_ANNOTATION: &str = "io.github.pagefold.fsverity.salt";

/// The longest manifest or index, bytes.
pub(super) const MAX_MANIFEST_BYTES: usize = 4 << 20;
/// Most layers, or entries of an index.
const MAX_ENTRIES: usize = 4096;

/// Why a manifest is refused, or has no image for us.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not the JSON of a manifest.
    #[error("it is no manifest: {0}")]
    Malformed(String),
    /// No manifest for the platform.
    #[error("there is no image for the platform {wanted}; --platform names one of: {there_are}")]
    NoPlatform {
        /// The platform.
        wanted: String,
        /// Those of the index.
        there_are: String,
    },
    /// No layer that is an image, or too many.
    #[error("{0}")]
    NoImage(String),
}

/// The feature of platforms whose layers are EROFS images.
const EROFS_FEATURE: &str = "erofs";

/// A platform: `os/architecture`, perhaps with `/variant`, and with features after the system: `linux(+erofs)/amd64`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// Features that the system needs, such as `erofs`. As a choice: `None` for any, with EROFS preferred; an empty list for
    /// none.
    #[serde(rename = "os.features", default)]
    pub os_features: Option<Vec<String>>,
    /// `amd64`, as Go names it.
    pub architecture: String,
    /// `v8`; `None` for any.
    #[serde(default)]
    pub variant: Option<String>,
}

impl Platform {
    /// The platform that this program runs on.
    pub fn of_this_machine() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        let os = std::env::consts::OS.into();
        Platform { os, os_features: None, architecture: architecture.into(), variant: None }
    }

    /// The same platform, of which an image without features is wanted unless some were chosen: its layers are archives.
    #[must_use]
    pub fn preferring_archives(self) -> Self {
        Platform { os_features: Some(self.os_features.unwrap_or_default()), ..self }
    }

    fn features(&self) -> &[String] {
        self.os_features.as_deref().unwrap_or_default()
    }

    /// Whether an image for `other` is one for this platform. Without a variant any will do; `arm64` is `arm64/v8`.
    fn accepts(&self, other: &Platform) -> bool {
        let normal = |platform: &Platform| match (&*platform.architecture, platform.variant.as_deref()) {
            ("arm64", None) => Some("v8".to_string()),
            (_, variant) => variant.map(String::from),
        };
        let has_features = match self.features() {
            // Another feature than that of EROFS may be something that this machine does not have.
            [] if self.os_features.is_none() => other.features().iter().all(|one| one == EROFS_FEATURE),
            [] => other.features().is_empty(),
            wanted => wanted.iter().all(|one| other.features().contains(one)),
        };
        self.os == other.os
            && has_features
            && self.architecture == other.architecture
            && (self.variant.is_none() || normal(self) == normal(other))
    }
}

impl FromStr for Platform {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words: Vec<_> = text.split('/').collect();
        let is_word = |word: &&str| {
            (1..=32).contains(&word.len())
                && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        let system = words.first().and_then(|system| system.strip_suffix(')')?.split_once("(+"));
        let features: Option<Vec<&str>> = system.map(|(os, features)| {
            words[0] = os;
            features.split('+').collect()
        });
        let are_words = words.iter().chain(features.iter().flatten()).all(is_word);
        let platform = |os: &str, architecture: &str, variant: Option<&str>| Platform {
            os: os.to_string(),
            os_features: features.map(|features| features.into_iter().map(String::from).collect()),
            architecture: architecture.to_string(),
            variant: variant.map(String::from),
        };
        match (are_words, &words[..]) {
            (true, [os, architecture]) => Ok(platform(os, architecture, None)),
            (true, [os, architecture, variant]) => Ok(platform(os, architecture, Some(variant))),
            _ => Err("a platform is os/architecture or os/architecture/variant, such as linux/arm64, with features as in \
                linux(+erofs)/amd64"
                .to_string()),
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.os)?;
        if let [first, further @ ..] = self.features() {
            write!(f, "(+{first}")?;
            further.iter().try_for_each(|feature| write!(f, "+{feature}"))?;
            f.write_str(")")?;
        }
        write!(f, "/{}", self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

/// A blob or a manifest, as another manifest names it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Descriptor {
    /// The kind.
    #[serde(rename = "mediaType")]
    pub media_type: String,
    /// The digest, checked to be one of SHA-256 where it is used.
    pub digest: String,
    /// The length.
    #[serde(rename = "size")]
    pub len_bytes: u64,
    /// The platform, in an index.
    #[serde(default)]
    pub platform: Option<Platform>,
    /// Names and texts.
    #[serde(default)]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// A manifest or an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manifest {
    /// The layers of an image or an artifact, and its configuration.
    Image {
        /// The layers, the lowest first.
        layers: Vec<Descriptor>,
        /// The configuration, which not every artifact has.
        config: Option<Descriptor>,
    },
    /// Manifests for platforms.
    Index(Vec<Descriptor>),
}

/// The layer that is the image, and its tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// The image.
    pub image: Descriptor,
    /// Its Merkle tree, if the manifest has both a digest and a tree.
    pub tree: Option<TreeLayer>,
    /// A digest of fs-verity without a tree.
    pub lone_digest: Option<String>,
}

/// The Merkle tree of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeLayer {
    /// The tree.
    pub blob: Descriptor,
    /// The digest that the annotation has, as text.
    pub digest: String,
    /// The salt that the annotation has, in hexadecimal.
    pub salt: String,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "schemaVersion")]
    schema_version: u64,
    #[serde(rename = "mediaType", default)]
    media_type: Option<String>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
}

impl Manifest {
    /// Parses the bytes of an answer. `content_type` is its header.
    pub fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Self, ManifestError> {
        let malformed = |what: &str| ManifestError::Malformed(what.to_string());
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(malformed("it is too long"));
        }
        // Values that are not read are skipped without recursion.
        let raw: Raw = serde_json::from_slice(bytes).map_err(|e| malformed(&place(&e)))?;
        if raw.schema_version != 2 {
            return Err(malformed("its schemaVersion is not 2"));
        }
        let manifest = match (raw.layers, raw.manifests) {
            (Some(layers), None) => Manifest::Image { layers, config: raw.config },
            (None, Some(manifests)) => Manifest::Index(manifests),
            (Some(_), Some(_)) => return Err(malformed("it has layers and manifests")),
            (None, None) => return Err(malformed("it has neither layers nor manifests")),
        };
        if manifest.entries().len() > MAX_ENTRIES {
            return Err(malformed("it has too many entries"));
        }
        let content_type = content_type.map(|text| text.split(';').next().unwrap_or_default().trim());
        for media_type in raw.media_type.as_deref().into_iter().chain(content_type) {
            let is_index = match media_type {
                "application/vnd.oci.image.index.v1+json"
                | "application/vnd.docker.distribution.manifest.list.v2+json" => true,
                "application/vnd.oci.image.manifest.v1+json"
                | "application/vnd.docker.distribution.manifest.v2+json" => false,
                _ => continue,
            };
            if is_index != matches!(manifest, Manifest::Index(_)) {
                return Err(malformed("its media type is that of the other kind"));
            }
        }
        Ok(manifest)
    }

    /// The entry of an index for a platform: the first that is for it, or the only one if it is for none. If the platform
    /// does not choose features, the first one of EROFS layers precedes the others.
    pub fn for_platform(&self, platform: &Platform) -> Result<&Descriptor, ManifestError> {
        let entries = self.entries();
        let is_for = |entry: &&Descriptor| entry.platform.as_ref().is_some_and(|p| platform.accepts(p));
        let is_erofs =
            |entry: &&&Descriptor| entry.platform.as_ref().is_some_and(|p| !p.features().is_empty());
        let fitting: Vec<_> = entries.iter().filter(is_for).collect();
        let preferred = fitting.iter().find(is_erofs).or(fitting.first()).copied();
        let entry = match (preferred, entries) {
            (Some(entry), _) => entry,
            (None, [only]) if only.platform.is_none() => only,
            _ => {
                let all = entries.iter().filter_map(|entry| entry.platform.as_ref());
                let all: Vec<_> = all.map(|p| printable(&p.to_string())).take(20).collect();
                let there_are = if all.is_empty() { "none".to_string() } else { all.join(", ") };
                return Err(ManifestError::NoPlatform { wanted: platform.to_string(), there_are });
            }
        };
        checked(entry)
    }

    /// The layer of a manifest that is an image: the one of EROFS's media type, or the only one of an artifact.
    pub fn layer(&self) -> Result<Layer, ManifestError> {
        let no_image = |what: String| Err(ManifestError::NoImage(what));
        let layers = self.entries();
        let of_type = |name: &str| layers.iter().filter(|layer| layer.media_type == name).collect::<Vec<_>>();
        let (images, trees) = (of_type(EROFS_LAYER), of_type(TREE_LAYER));
        let others = layers.iter().filter(|layer| layer.media_type != TREE_LAYER);
        let image = match (&images[..], &others.collect::<Vec<_>>()[..]) {
            ([image], _) => *image,
            ([], [only]) if !is_archive(&only.media_type) => *only,
            ([], []) => return no_image("the manifest has no layers".to_string()),
            ([], all) if all.iter().any(|layer| is_compressed_erofs(&layer.media_type)) => {
                let what = "no layer of the manifest is an EROFS image that can be read in parts: one is compressed as a \
                    whole; push it without that compression, as application/vnd.erofs.layer.v1, because an image is \
                    compressed inside";
                return no_image(what.to_string());
            }
            ([], all) => {
                let kinds: Vec<_> = all.iter().take(3).map(|layer| printable(&layer.media_type)).collect();
                let what = format!(
                    "no layer of the manifest is an EROFS image ({EROFS_LAYER}); 'pagefold image build' makes one of the \
                     layers of a container; there are: {}",
                    kinds.join(", ")
                );
                return no_image(what);
            }
            (several, _) => {
                return no_image(format!(
                    "the manifest has {} layers of EROFS, and images of one are read: push an image on several devices as \
                     one artifact for each, and name the others with --device",
                    several.len()
                ));
            }
        };
        let annotation = |name: &str| image.annotations.as_ref().and_then(|all| all.get(name)).cloned();
        let (tree, lone_digest) = match (annotation(DIGEST_ANNOTATION), &trees[..]) {
            (Some(digest), [tree]) => {
                let salt = annotation(SALT_ANNOTATION).unwrap_or_default();
                (Some(TreeLayer { blob: checked(tree)?.clone(), digest, salt }), None)
            }
            (_, [_, _, ..]) => return no_image("the manifest has several Merkle trees".to_string()),
            (lone, _) => (None, lone),
        };
        Ok(Layer { image: checked(image)?.clone(), tree, lone_digest })
    }

    pub(super) fn entries(&self) -> &[Descriptor] {
        let (Manifest::Image { layers: entries, .. } | Manifest::Index(entries)) = self;
        entries
    }
}

/// Fails if the descriptor names nothing that can be asked for.
pub(super) fn checked(entry: &Descriptor) -> Result<&Descriptor, ManifestError> {
    match (is_digest(&entry.digest), entry.len_bytes <= i64::MAX as u64) {
        (true, true) => Ok(entry),
        (false, _) => {
            Err(ManifestError::Malformed(format!("'{}' is no digest of SHA-256", printable(&entry.digest))))
        }
        (_, false) => Err(ManifestError::Malformed("a length is out of range".to_string())),
    }
}

/// Whether layers of this type are EROFS images that are compressed once more, as a whole.
pub(super) fn is_compressed_erofs(media_type: &str) -> bool {
    media_type.contains("erofs")
        && ["+zstd", "+gzip", "+xz"].iter().any(|suffix| media_type.ends_with(suffix))
}

/// Whether layers of this type are archives, compressed or not, or other things that are no images.
fn is_archive(media_type: &str) -> bool {
    media_type.contains("tar") || media_type.contains("+zstd") || media_type.contains("+gzip")
}

/// The place of an error in JSON, without the text there.
pub(super) fn place(error: &serde_json::Error) -> String {
    format!("line {}, column {} of its JSON", error.line(), error.column())
}

/// A text of a server for a message.
pub(super) fn printable(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_graphic()).take(100).collect()
}

#[cfg(test)]
mod tests;
