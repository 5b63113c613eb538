//! The server process of one disk: what it serves, how it is told what to do,
//! and how commands talk to it.

pub mod attributes;
pub mod backing;
pub mod client;
pub mod codecs;
pub mod config;
mod control;
pub mod disk;
pub mod door;
pub mod engine;
pub mod images;
mod log;
pub mod parked;
mod pass;
pub mod protocol;
pub mod refused;
pub mod report;
pub mod server;
mod startup;

pub use startup::{Handed, Ready, SERVE, Started, serve_from_stdin, start};

/// Whether a peer on a unix socket may command this process, or answer for one: the same user, or root.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == pagefold_sys::rundir::effective_uid()
}
