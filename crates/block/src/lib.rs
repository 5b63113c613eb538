//! Block devices over the engine, and the doors that serve them.
//!
//! A [`BlockDevice`] reads and writes byte ranges; layers implement the same
//! trait over another device; doors ([`nbd`], [`loopdoor`] and its [`fuse`]) know
//! protocols and nothing of compression. Cut this way, a door is tested on plain memory
//! ([`RamDevice`]) and every fault test is a layer.
//!
//! It does not parse command lines, keep runtime folders, or know what a codec is.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod device;
mod error;
pub mod fuse;
pub mod loopdoor;
pub mod metered;
pub mod nbd;
mod ram;
mod store_device;

pub use device::{BlockDevice, Extent, ExtentKind};
pub use error::BlockError;
pub use metered::Metered;
pub use ram::RamDevice;
pub use store_device::StoreDevice;
