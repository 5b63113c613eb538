//! The NBD export: serves a block device to clients of the network block device protocol.
//!
//! It speaks the fixed newstyle protocol; `docs/protocols/nbd.md` describes the supported messages, limits and errors.
//! From the wire upwards:
//!
//! - [`proto`]: numbers and encodings;
//! - [`handshake`], [`transmission`]: the protocol as state machines over bytes, without I/O; `meta`: block status;
//!   `pieces`: long requests; `replies`: data and errors in replies; `deferred`: requests that wait for the medium, and
//!   `request_memory`, the memory that they may take;
//! - [`buffer`], `transport`, `tls`, `connection`: the I/O of one client;
//! - `listen`, `server`, `client_table`: sockets, threads, and the limits of clients;
//! - `report`: rate-limited reports for a log.
//!
//! One request: `connection` receives it on the client's thread -> `transmission` decodes it, calls the device and
//! encodes the reply -> `connection` sends the reply.
//!
//! Each listener has a thread that accepts clients (`listen`), and each client a thread that serves it until it
//! disconnects (`connection`); requests that wait for the medium have threads of their client beside it (`deferred`). The
//! server has one lock for the table of clients and one for the list of its
//! listeners; the list's is taken first. Neither is held while a device is called or a socket is read or written.
//! `report` has another lock, which may be taken under the table's.
//!
//! A limit on handshakes makes further clients wait in the listener's queue, and a limit on open exports refuses
//! further clients; `client_table` says which client is disconnected to make space. A connection uses at most
//! [`CONNECTION_MEMORY`] bytes of buffers. A protocol error or a socket error ends the
//! connection that it occurs on and no other.
//!
//! This module does not know how the device works, creates no files but a socket, and does not choose where to listen.

pub mod buffer;
mod client_table;
mod connection;
mod deferred;
mod error;
mod export;
pub mod handshake;
mod limits;
mod listen;
mod meta;
mod pieces;
pub mod proto;
mod replies;
mod reply_times;
mod report;
mod request_memory;
mod server;
mod tls;
pub mod transmission;
mod transport;
pub mod uri;

pub use error::{NbdError, ProtocolError};
pub use export::{BLOCK_SIZES, Export};
pub use limits::Limits;
pub use listen::UnixSocket;
pub use proto::MAX_DATA;
pub use server::{CONNECTION_MEMORY, Counters, Server};
pub use tls::TlsConfig;
