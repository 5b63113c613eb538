//! Choices of `image build` for which it has no options, because only callers of `mkfs.erofs` need them.

use pagefold_image_build::{Form, FsConfig, Pattern, Rule};

/// Choices of `mkfs.erofs` beyond the options of `image build`.
#[derive(Debug, Clone, Default)]
pub struct Further {
    /// Whether a file or block device that is there is written as it is, and not replaced: its users may have it open.
    pub in_place: bool,
    /// Where the image begins in the file, bytes. If that is not 0, the rest of the file stays.
    pub offset_bytes: u64,
    /// Time of creation, seconds since 1970, in place of that of the environment.
    pub build_time: Option<i64>,
    /// Whether contents stay in the sources, which are devices of the image.
    pub is_index: bool,
    /// The form in which contents are stored.
    pub form: Form,
    /// Rules after those of `--rule`.
    pub rules: Vec<Rule>,
    /// Patterns besides those of `--exclude`.
    pub exclude: Vec<Pattern>,
    /// Owners, modes and capabilities by path.
    pub fs_config: Option<FsConfig>,
    /// Changes of owners, after those.
    pub owners: Owners,
}

/// Changes of owners: first the numbers are replaced, then the offsets are added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owners {
    /// The user of all files.
    pub uid: Option<u32>,
    /// The group of all files.
    pub gid: Option<u32>,
    /// Is added to all numbers of users.
    pub uid_offset: u32,
    /// Is added to all numbers of groups.
    pub gid_offset: u32,
}
