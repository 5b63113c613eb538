//! The feature images: small images of one tree that together use every feature (`tests/fixtures/README.md`).

use super::{Entry, fixtures, list};
use pagefold_backing::{Backing, ByteSource, MemoryBacking};
use pagefold_image::Options;
use std::fs;
use std::sync::{Arc, OnceLock};

/// An image and its further devices.
pub struct Feature {
    /// Its name; `features.tsv` lists the options that it was built with.
    pub name: String,
    /// The bytes of the image.
    pub bytes: Vec<u8>,
    /// The bytes of each further device.
    pub devices: Vec<Vec<u8>>,
}

impl Feature {
    /// The image as a medium.
    pub fn medium(&self) -> Arc<dyn ByteSource> {
        memory(&self.bytes)
    }

    /// `options` with the image's devices.
    pub fn options(&self, options: Options) -> Options {
        Options { devices: self.devices.iter().map(|bytes| source(bytes)).collect(), ..options }
    }
}

/// A medium of these bytes.
pub fn memory(bytes: &[u8]) -> Arc<MemoryBacking> {
    let medium = MemoryBacking::new(bytes.len());
    medium.write_at(0, bytes).unwrap();
    Arc::new(medium)
}

/// The same, as a source of images.
pub fn source(bytes: &[u8]) -> Arc<dyn ByteSource> {
    memory(bytes)
}

/// All feature images.
pub fn features() -> &'static [Feature] {
    static ALL: OnceLock<Vec<Feature>> = OnceLock::new();
    ALL.get_or_init(unpack)
}

/// The feature image of that name.
pub fn feature(name: &str) -> &'static Feature {
    features().iter().find(|feature| feature.name == name).unwrap()
}

/// The tree that all feature images hold.
pub fn tree() -> Vec<Entry> {
    list("features.jsonl")
}

fn unpack() -> Vec<Feature> {
    let table = fs::read_to_string(fixtures().join("features.tsv")).unwrap();
    let packed = fs::read(fixtures().join("features.zst")).unwrap();
    let rows: Vec<(&str, usize)> = table
        .lines()
        .map(|line| line.split('\t'))
        .map(|mut row| (row.next().unwrap(), row.next().unwrap().parse().unwrap()))
        .collect();
    let mut all = vec![0; rows.iter().map(|(_, len)| len).sum()];
    let len = zstd_safe::decompress(all.as_mut_slice(), &packed);
    assert_eq!(len.map_err(zstd_safe::get_error_name), Ok(all.len()));
    let mut features: Vec<Feature> = Vec::new();
    let mut rest = all.as_slice();
    for (name, len) in rows {
        let (bytes, remaining) = rest.split_at(len);
        rest = remaining;
        match name.contains('.') {
            true => features.last_mut().unwrap().devices.push(bytes.to_vec()),
            false => {
                features.push(Feature { name: name.to_owned(), bytes: bytes.to_vec(), devices: Vec::new() })
            }
        }
    }
    features
}
