//! [`Limits`] of a server.

use std::time::Duration;

/// Limits of a server's clients. Each client has a thread, up to 16 more for reads that wait for the medium, and at
/// most [`CONNECTION_MEMORY`](super::CONNECTION_MEMORY) bytes of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Clients that have the export open at once. Another one is refused, unless a client that has never sent a request
    /// can be disconnected instead.
    pub max_connections: usize,
    /// Clients in their handshake at once. Another one waits until one of them has ended its handshake or is
    /// disconnected.
    pub max_handshakes: usize,
    /// Time limit of a handshake, from the connection to the open export.
    pub handshake_time: Duration,
    /// Age from which a handshake may be ended if another client waits to begin its own.
    pub handshake_grace: Duration,
    /// How long a client that has sent no request keeps the export open at the limit of connections.
    pub unused_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_connections: 128,
            max_handshakes: 32,
            handshake_time: Duration::from_secs(15),
            handshake_grace: Duration::from_secs(1),
            unused_grace: Duration::from_secs(10),
        }
    }
}
