//! The NBD door: a block device served to network block device clients.
//!
//! Speaks the fixed newstyle protocol to any number of clients at once, one thread
//! each. What is spoken, with limits and errors, stands in
//! `docs/protocols/nbd.md`. From the wire upwards:
//!
//! - [`proto`]: numbers and encodings;
//! - [`handshake`], [`transmission`]: what to answer, as machines over bytes without I/O;
//! - `transport`, `tls`, `connection`: moving the bytes of one client;
//! - `listen`, `server`, `places`: sockets, who may connect, threads, who gives way, and the end of it all;
//! - `report`: what of that is for a log.
//!
//! It knows nothing of what the device does, keeps no files but a socket's, and does
//! not decide where to listen.

pub mod buffer;
mod connection;
mod error;
mod export;
pub mod handshake;
mod listen;
mod meta;
mod places;
pub mod proto;
mod report;
mod server;
mod tls;
pub mod transmission;
mod transport;
pub mod uri;

pub use error::{NbdError, ProtocolError};
pub use export::{BLOCK_SIZES, Export, MAX_DATA};
pub use listen::UnixSocket;
pub use server::{CONNECTION_MEMORY, Counters, Limits, Server};
pub use tls::TlsConfig;
