//! A dense allocator of compressed objects of 1 to 4096 bytes.
//!
//! Objects of one size class stand shoulder to shoulder in a chain of 4 KiB
//! frames and may straddle two of them, so no frame has a tail that fits nothing
//! and an object of 3.7 kB costs 3.7 kB. A class stays dense because the hole that
//! a freed object leaves is refilled by the next allocation, and when holes gather,
//! objects from the end of the chain are moved into them and the end is cut off.
//!
//! There is no table of handles: a handle is an address. Each object begins with
//! one [`Owner`] word, and a move asks the owner ([`Relocate`]) to exchange the old
//! handle for the new one. Frames come from a [`PageSource`], so that limits,
//! reserves and faults are decided elsewhere: [`Arena`] is the real one,
//! `RefuseNth` a layer for fault tests, behind the feature `testing`.
//!
//! The pool does not know what is in an object, which are old, or who may read
//! one: readers and the owner's exchange are ordered by a lock that the owner has
//! (the slot's), and the functions that rely on it are `unsafe` and say so.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arena;
mod class;
mod frame;
#[cfg(feature = "testing")]
mod layer;
mod pool;
mod reserve;
mod size_class;
mod source;
mod stock;

pub use arena::{Arena, ArenaStats};
pub use frame::{FRAME_LEN, FrameId, Handle};
#[cfg(feature = "testing")]
pub use layer::RefuseNth;
pub use pool::{ClassStats, Owner, OwnerKind, Pool, PutError, Relocate};
pub use reserve::Reserve;
pub use size_class::OBJECT_LEN_MAX;
pub use source::{FRAMES_MAX, Frames, PageSource, Purpose, SourceError, Take};
pub use stock::FrameStock;
