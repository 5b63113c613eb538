//! The values of `--fuse-uring`, which disks and mounts of images have in common.

use clap::ValueEnum;
use pagefold_control::config::FuseUring;

/// The values of `--fuse-uring`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FuseUringArg {
    /// As on, without the warning; as off for images on servers
    Auto,
    /// Where the kernel offers it: Linux 6.14, with /sys/module/fuse/parameters/enable_uring set by the administrator; a
    /// warning where it does not
    On,
    /// Never
    Off,
}

impl From<FuseUringArg> for FuseUring {
    fn from(arg: FuseUringArg) -> Self {
        match arg {
            FuseUringArg::Auto => FuseUring::Auto,
            FuseUringArg::On => FuseUring::On,
            FuseUringArg::Off => FuseUring::Off,
        }
    }
}
