//! Compiles and runs the Rust examples of `README.md` and of the guides in `docs/`, as documentation tests.
//!
//! This is a separate crate because the examples use several crates, and none of these depends on all others. The
//! examples run in this folder, which has the image `app.erofs` that they open. The test `guides` of the binary runs
//! the commands of the same documents, and fails if one of them is missing here.

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/disk.md")]
struct Disk;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/image.md")]
struct Image;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/memory.md")]
struct Memory;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference.md")]
struct Reference;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/zram.md")]
struct Zram;
