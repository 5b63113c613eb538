//! Images with features that Debian's mkfs.erofs lacks: other compressions, fragments, records of extents, metabox.
//!
//! They are fixtures of the crate `image`, whose tests know their contents. The soak reads them in all ways, which must
//! agree, and damages them.

use std::sync::OnceLock;

/// Name and length of each file, one a line. A name with a dot is a further device of the image before it.
const TABLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/image/tests/fixtures/features.tsv"));
/// All files, concatenated and compressed with zstd.
const PACKED: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/image/tests/fixtures/features.zst"));

/// An image with its further devices.
#[derive(Debug)]
pub struct Feature {
    /// The name.
    pub name: &'static str,
    /// The bytes of the image.
    pub bytes: Vec<u8>,
    /// The bytes of each further device.
    pub devices: Vec<Vec<u8>>,
}

fn rows() -> impl Iterator<Item = (&'static str, usize)> {
    TABLE.lines().filter_map(|line| {
        let mut fields = line.split('\t');
        Some((fields.next()?, fields.next()?.parse().ok()?))
    })
}

/// Number of images.
pub fn count() -> usize {
    rows().filter(|(name, _)| !name.contains('.')).count()
}

/// The image of this number.
pub fn get(number: usize) -> Option<&'static Feature> {
    static ALL: OnceLock<Vec<Feature>> = OnceLock::new();
    ALL.get_or_init(unpack).get(number)
}

fn unpack() -> Vec<Feature> {
    let mut all = vec![0; rows().map(|(_, len)| len).sum()];
    // On an error there are no images, and a test below fails.
    if zstd_safe::decompress(all.as_mut_slice(), PACKED) != Ok(all.len()) {
        return Vec::new();
    }
    let mut features: Vec<Feature> = Vec::new();
    let mut rest = all.as_slice();
    for (name, len) in rows() {
        let (bytes, following) = rest.split_at(len);
        rest = following;
        match features.last_mut() {
            Some(last) if name.contains('.') => last.devices.push(bytes.to_vec()),
            _ => features.push(Feature { name, bytes: bytes.to_vec(), devices: Vec::new() }),
        }
    }
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixtures_contain_every_image_of_the_table() {
        assert!(count() > 20 && get(count()).is_none());
        let all: Vec<_> = (0..count()).map(|number| get(number).unwrap()).collect();
        assert!(all.iter().all(|f| f.bytes[1024..1028] == 0xe0f5_e1e2u32.to_le_bytes()));
        assert!(all.iter().any(|f| f.devices.len() == 1));
    }
}
