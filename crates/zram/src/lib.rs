//! Disks behind the files of the kernel's zram, so that scripts for zram can drive them.
//!
//! | module | contents |
//! |---|---|
//! | [`classes`] | size classes as text |
//! | [`disks`] | the trait of what the tree needs of disks, and its implementation by running servers |
//! | [`files`] | the names and modes of the files of a device |
//! | [`tree`] | the FUSE file system |
//!
//! A disk with the name `zramN` is device N. The [`tree`] shows each of them with the files that the kernel has in
//! `/sys/block/zramN`, and has `hot_add` and `hot_remove`, as `/sys/class/zram-control` does. A read or write of a file
//! is one request to the server of the disk, which knows the syntax and returns the error number that zram returns. The
//! files that the kernel has in debugfs are there too.
//!
//! The tree stores nothing but its open files: it reads from the runtime folder which disks exist, each time. So it can
//! end, or be killed, at any time: the disks go on, and a new tree shows them again.
//!
//! This crate makes no mount but that of the tree, and prints nothing. The shell in which the files are at the paths of
//! the kernel's is a command of `pagefold`.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod classes;
pub mod disks;
pub mod files;
pub mod tree;
