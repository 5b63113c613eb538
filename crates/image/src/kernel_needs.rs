//! The parts of Linux that an image needs: a version, and options of the kernel's configuration.
//!
//! A version is not a configuration: a kernel may be built without an algorithm, or without attributes. The version is
//! [`Superblock::required_kernel`]; the options follow from the superblock and from [`TreeStats`].

use crate::format::features::{incompat, option};
use crate::read::{Algorithm, Superblock};
use crate::tree_stats::TreeStats;

/// The effect of a missing option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// The kernel refuses the image.
    Mount,
    /// The kernel mounts the image, and ignores attributes.
    Attributes,
    /// The kernel mounts block devices only, so an image in a file needs a loop device.
    File,
}

/// An option of the kernel's configuration that an image needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NeededOption {
    /// The name, as in `CONFIG_EROFS_FS`.
    pub name: &'static str,
    /// The effect if it is missing.
    pub need: Need,
}

impl Need {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Need::Mount => "mount",
            Need::Attributes => "attributes",
            Need::File => "file",
        }
    }
}

/// The options that the kernel needs for this image, those for mounting first.
///
/// The kernel judges an image by its superblock when it mounts it, so an algorithm that no file uses counts too.
pub fn options(superblock: &Superblock, stats: &TreeStats) -> Vec<NeededOption> {
    let mut needed = vec![NeededOption { name: option::EROFS, need: Need::Mount }];
    let mut push = |is_needed: bool, name, need| {
        if is_needed {
            needed.push(NeededOption { name, need });
        }
    };
    let algorithms = &superblock.algorithms;
    push(algorithms.is_declared || stats.has_compressed_files(), option::ZIP, Need::Mount);
    // Without configuration records the kernel knows LZ4 only, and LZ4 needs no option besides.
    let has_records = superblock.incompat & incompat::COMPR_CFGS != 0;
    for algorithm in algorithms.iter().filter(|algorithm| has_records && *algorithm != Algorithm::Lz4) {
        push(true, option::of_algorithm(algorithm), Need::Mount);
    }
    push(stats.with_xattrs > 0, option::XATTR, Need::Attributes);
    push(stats.with_security > 0, option::SECURITY, Need::Attributes);
    push(stats.with_access_lists > 0, option::POSIX_ACL, Need::Attributes);
    push(true, option::BACKED_BY_FILE, Need::File);
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::le::{Le16, Le32};
    use crate::read::tests::TestImage;

    /// The names of the options of one need, for a superblock with these fields and `records` after it.
    fn names(incompat: u32, u1: u16, records: &[u8], stats: &TreeStats, need: Need) -> Vec<&'static str> {
        let mut image = TestImage::new(12);
        image.raw.feature_incompat = Le32::new(incompat);
        image.raw.u1 = Le16::new(u1);
        image.put(1024 + 128, records);
        let all = options(&image.superblock().unwrap(), stats).into_iter();
        all.filter(|option| option.need == need).map(|option| option.name).collect()
    }

    #[test]
    fn each_algorithm_of_the_superblock_needs_its_option() {
        let none = TreeStats::default();
        let mount = |incompat, u1, records| names(incompat, u1, records, &none, Need::Mount);
        assert_eq!(mount(0, 0, &[]), ["CONFIG_EROFS_FS"]);
        assert_eq!(mount(0, 65535, &[]), ["CONFIG_EROFS_FS", "CONFIG_EROFS_FS_ZIP"]);
        let zstd = [6, 0, 0, 9, 0, 0, 0, 0];
        assert_eq!(
            mount(incompat::COMPR_CFGS, 1 << Algorithm::Zstd as u16, &zstd),
            ["CONFIG_EROFS_FS", "CONFIG_EROFS_FS_ZIP", "CONFIG_EROFS_FS_ZIP_ZSTD"]
        );
    }

    #[test]
    fn compressed_files_and_attributes_need_options_too() {
        let mut stats = TreeStats::default();
        let of = |stats: &TreeStats, need| names(0, 0, &[], stats, need);
        assert!(of(&stats, Need::Attributes).is_empty());
        assert_eq!(of(&stats, Need::File), ["CONFIG_EROFS_FS_BACKED_BY_FILE"]);
        stats.layouts[2].count = 1;
        assert_eq!(of(&stats, Need::Mount), ["CONFIG_EROFS_FS", "CONFIG_EROFS_FS_ZIP"]);
        (stats.with_xattrs, stats.with_access_lists) = (2, 1);
        let attributes = of(&stats, Need::Attributes);
        assert_eq!(attributes, ["CONFIG_EROFS_FS_XATTR", "CONFIG_EROFS_FS_POSIX_ACL"]);
        (stats.with_security, stats.with_access_lists) = (1, 0);
        let attributes = of(&stats, Need::Attributes);
        assert_eq!(attributes, ["CONFIG_EROFS_FS_XATTR", "CONFIG_EROFS_FS_SECURITY"]);
    }
}
