//! The media of an image: what commands and the server of a mount open.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// An image with its devices, and how they are verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaConfig {
    /// The image.
    pub image: PathBuf,
    /// Its further devices, in the order of its device table.
    pub devices: Vec<PathBuf>,
    /// The digests that all bytes must belong to; `None` if nothing is verified.
    pub verity: Option<VerityConfig>,
}

/// The digests of an image and its devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerityConfig {
    /// The digest of the image, then of each device, as text.
    pub digests: Vec<String>,
    /// The Merkle trees, in the same order. Those that are not named are beside the images.
    pub trees: Vec<PathBuf>,
    /// The salt of all digests, in hexadecimal.
    pub salt: String,
}

impl MediaConfig {
    /// An image without further devices, not verified.
    pub fn of(image: PathBuf) -> Self {
        MediaConfig { image, devices: Vec::new(), verity: None }
    }

    /// The image and its devices.
    pub fn all(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.image).chain(&self.devices)
    }
}
