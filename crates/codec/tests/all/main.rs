//! The tests of the crate that can share a process, in one program, which takes less time to build than many.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod c842_format;
mod c842_kernel;
mod cluster_encode;
#[allow(clippy::undocumented_unsafe_blocks, reason = "calls of encoders with live buffers")]
mod cluster_in_place;
#[allow(clippy::undocumented_unsafe_blocks, reason = "calls of encoders with live buffers")]
mod cluster_range;
#[allow(clippy::undocumented_unsafe_blocks, reason = "calls of encoders with live buffers")]
mod cluster_whole;
mod contract;
mod deflate_window;
mod lz4_page;
mod lzo_hostile;
mod lzo_kernel;
mod lzo_lzop;
mod lzo_roundtrip;
mod lzo_vectors;
mod numbers_page;
#[path = "../support/mod.rs"]
mod support;
