//! Options by purpose: few users know clusters, algorithms and levels.
//!
//! A preset sets what decides about size and speed, and nothing else. `docs/image/build.md` has a table with measured sizes and
//! times.

use super::compression::{Compression, Method};
use super::options::{BLOCK_BYTES, CLUSTER_BYTES_MAX, Dedupe, Options};
use pagefold_image::format::config::Algorithm;

/// Clusters of [`Preset::Fast`], bytes.
const FAST_CLUSTER_BYTES: u32 = 16 << 10;

/// The purpose of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Built and read fast.
    Fast,
    /// The default: small, and not slower to read.
    Balanced,
    /// As small as possible.
    Small,
}

impl Preset {
    /// Sets the options. `decodes` says whether all kernels that have to mount the image have an algorithm; all have LZ4.
    /// `has_metabox`: whether they read compressed inodes.
    pub fn apply(self, options: &mut Options, decodes: impl Fn(Algorithm) -> bool, has_metabox: bool) {
        let has_big_clusters = options.cluster_bytes > BLOCK_BYTES;
        let cluster = |bytes| if has_big_clusters { bytes } else { BLOCK_BYTES };
        match self {
            Preset::Fast => {
                options.compression = Some(Compression::of(Method::Lz4));
                options.cluster_bytes = cluster(FAST_CLUSTER_BYTES);
                // To find equal parts takes as long as LZ4.
                options.dedupe = Dedupe::Files;
            }
            Preset::Balanced => {}
            Preset::Small => {
                let best = [(Method::Lzma, 9), (Method::Zstd, 22)];
                let best = best.into_iter().find(|(method, _)| decodes(method.algorithm()));
                let (method, level) = best.unwrap_or((Method::Lz4Hc, 12));
                options.compression = Some(Compression { method, level });
                options.cluster_bytes = cluster(CLUSTER_BYTES_MAX);
                options.compress_metadata = has_metabox;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TARGETS;

    #[test]
    fn all_targets_can_mount_what_presets_choose() {
        for target in TARGETS {
            for preset in [Preset::Fast, Preset::Balanced, Preset::Small] {
                let mut options = Options::for_target(target);
                preset.apply(&mut options, |algorithm| target.decodes(algorithm), target.has_metabox());
                assert!(options.check().is_ok(), "{preset:?}, {target}");
            }
        }
    }

    #[test]
    fn small_is_the_densest_that_the_kernel_has() {
        let chosen = |has: &[Algorithm]| {
            let mut options = Options::for_target(TARGETS[6]);
            Preset::Small.apply(&mut options, |algorithm| has.contains(&algorithm), false);
            options.compression.map(|compression| compression.to_string())
        };
        assert_eq!(chosen(&[Algorithm::Zstd, Algorithm::MicroLzma]).as_deref(), Some("lzma:9"));
        assert_eq!(chosen(&[Algorithm::Zstd]).as_deref(), Some("zstd:22"));
        assert_eq!(chosen(&[]).as_deref(), Some("lz4hc:12"));
    }
}
