//! Images with features that Debian's mkfs.erofs lacks: other compressions, fragments, records of extents, metabox.
//!
//! They are fixtures of the crate `image`, whose tests know what they hold. Here they are read in all ways, which
//! must agree, and damaged.

use std::sync::OnceLock;

/// Name and length of each file, one a line; one whose name has a dot is a further device of the image before.
const TABLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../image/tests/fixtures/features.tsv"));
/// All files, one behind the other, compressed.
const PACKED: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../image/tests/fixtures/features.zst"));

/// An image with its further devices.
#[derive(Debug)]
pub struct Feature {
    /// What it is called.
    pub name: &'static str,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Those of its devices.
    pub devices: Vec<Vec<u8>>,
}

fn rows() -> impl Iterator<Item = (&'static str, usize)> {
    TABLE.lines().filter_map(|line| {
        let mut fields = line.split('\t');
        Some((fields.next()?, fields.next()?.parse().ok()?))
    })
}

/// How many images there are.
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
    // Otherwise there are none, and a test fails.
    if zstd_safe::decompress(all.as_mut_slice(), PACKED) != Ok(all.len()) {
        return Vec::new();
    }
    let mut features: Vec<Feature> = Vec::new();
    let mut rest = all.as_slice();
    for (name, len) in rows() {
        let (bytes, behind) = rest.split_at(len);
        rest = behind;
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
    fn all_of_the_table_is_there() {
        assert!(count() > 20 && get(count()).is_none());
        let all: Vec<_> = (0..count()).map(|number| get(number).unwrap()).collect();
        assert!(all.iter().all(|f| f.bytes[1024..1028] == 0xe0f5_e1e2u32.to_le_bytes()));
        assert!(all.iter().any(|f| f.devices.len() == 1));
    }
}
