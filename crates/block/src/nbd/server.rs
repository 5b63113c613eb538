//! The server: its listeners, its connections, and how all of it ends.

use super::connection::{self, ConnectionError};
use super::listen::{Acceptor, UnixSocket, is_loopback, may_connect};
use super::tls::TlsConfig;
use super::transport::Socket;
use super::{Export, NbdError};
use rustix::net::{Shutdown, shutdown};
use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// What clients may take of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Clients at once, in the handshake or after it; one more is hung up on. Each has a thread
    /// and at most [`CONNECTION_MEMORY`] bytes of buffers.
    pub max_connections: usize,
    /// How long a client may take until it has opened the export.
    pub handshake_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_connections: 64, handshake_time: Duration::from_secs(15) }
    }
}

/// The most bytes of buffers that one connection holds, TLS included.
pub const CONNECTION_MEMORY: usize = 6 << 20;

/// How often something happened since the server began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Clients that were served a handshake.
    pub accepted: u64,
    /// Clients refused for their user id.
    pub refused_peer: u64,
    /// Clients refused because there were too many.
    pub refused_full: u64,
    /// Connections that ended by breaking the protocol, too slow a handshake, or a failed socket.
    pub failed: u64,
}

#[derive(Default)]
struct Counts {
    accepted: AtomicU64,
    refused_peer: AtomicU64,
    refused_full: AtomicU64,
    failed: AtomicU64,
}

/// An NBD server of one export on any number of listeners.
///
/// Dropping it stops it.
pub struct Server {
    shared: Arc<Shared>,
    acceptors: Mutex<Vec<Acceptor>>,
}

struct Shared {
    export: Export,
    limits: Limits,
    connections: Mutex<Connections>,
    counts: Counts,
}

#[derive(Default)]
struct Connections {
    stopping: bool,
    next_id: u64,
    open: HashMap<u64, Connection>,
    /// Threads that have left the table and are about to end, to be joined.
    ended: Vec<JoinHandle<()>>,
}

struct Connection {
    socket: Arc<OwnedFd>,
    thread: JoinHandle<()>,
    in_transmission: bool,
}

impl Server {
    /// A server without listeners yet.
    pub fn new(export: Export, limits: Limits) -> Self {
        let (connections, counts) = Default::default();
        let shared = Arc::new(Shared { export, limits, connections, counts });
        Server { shared, acceptors: Mutex::default() }
    }

    /// Serves clients of a unix socket: those of this process's user, and root.
    pub fn serve_unix(&self, socket: impl Into<UnixSocket>) -> Result<(), NbdError> {
        let UnixSocket { listener, file } = socket.into();
        let shared = self.shared.clone();
        self.add(|| {
            Acceptor::start(listener, file, move |client| {
                let own = rustix::process::geteuid().as_raw();
                match pagefold_sys::peer::credentials(client.as_fd()) {
                    Ok(peer) if may_connect(peer.uid, own) => shared.admit(client, None),
                    _ => count(&shared.counts.refused_peer),
                }
            })
        })
    }

    /// Serves clients of a TCP socket; with `tls`, only through TLS and only with a certificate.
    ///
    /// Without it the socket must be bound to a loopback address, and any user of this machine is
    /// served.
    pub fn serve_tcp(&self, listener: TcpListener, tls: Option<TlsConfig>) -> Result<(), NbdError> {
        let addr =
            listener.local_addr().map_err(|e| NbdError::io("asking for the listener's address", &e))?;
        if tls.is_none() && !is_loopback(addr) {
            return Err(NbdError::NeedsTls { addr });
        }
        let shared = self.shared.clone();
        self.add(|| Acceptor::start(listener.into(), None, move |client| shared.admit(client, tls.clone())))
    }

    /// How many clients have the export open. A client in its handshake does not count.
    pub fn connections(&self) -> usize {
        self.shared.lock().open.values().filter(|c| c.in_transmission).count()
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        let c = &self.shared.counts;
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Counters {
            accepted: read(&c.accepted),
            refused_peer: read(&c.refused_peer),
            refused_full: read(&c.refused_full),
            failed: read(&c.failed),
        }
    }

    /// Closes the listeners, hangs up on all clients, and waits until every thread has ended.
    ///
    /// Requests in execution are finished; their replies may be lost. Afterwards nothing of the
    /// server uses the device.
    pub fn stop(&self) {
        self.shared.lock().stopping = true;
        let acceptors = std::mem::take(&mut *self.lock_acceptors());
        acceptors.into_iter().for_each(Acceptor::stop);
        let (open, ended) = {
            let mut connections = self.shared.lock();
            (std::mem::take(&mut connections.open), std::mem::take(&mut connections.ended))
        };
        for connection in open.values() {
            // Wakes the thread from whatever it waits for; fails if the client is gone already.
            let _ = shutdown(&*connection.socket, Shutdown::Both);
        }
        for thread in ended.into_iter().chain(open.into_values().map(|c| c.thread)) {
            // A panic has been reported by the panic hook; the thread has ended either way.
            let _ = thread.join();
        }
    }

    fn add(&self, start: impl FnOnce() -> Result<Acceptor, NbdError>) -> Result<(), NbdError> {
        let mut acceptors = self.lock_acceptors();
        if self.shared.lock().stopping {
            return Err(NbdError::Stopped);
        }
        acceptors.push(start()?);
        Ok(())
    }

    fn lock_acceptors(&self) -> MutexGuard<'_, Vec<Acceptor>> {
        self.acceptors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread for a client, unless there are too many.
    fn admit(self: &Arc<Self>, client: OwnedFd, tls: Option<TlsConfig>) {
        // Held until the thread is entered in the table, so that it cannot leave before that.
        let mut connections = self.lock();
        for thread in connections.ended.drain(..) {
            // These threads have nothing left to do but end.
            let _ = thread.join();
        }
        if connections.stopping || connections.open.len() >= self.limits.max_connections {
            return count(&self.counts.refused_full);
        }
        let socket = Arc::new(client);
        let id = connections.next_id;
        connections.next_id += 1;
        let (shared, for_thread) = (self.clone(), socket.clone());
        let spawned = std::thread::Builder::new().name(format!("nbd-{id}")).spawn(move || {
            let leave = Leave { shared, id };
            let outcome = leave.serve(Socket::new(for_thread), tls);
            if outcome.is_err() {
                count(&leave.shared.counts.failed);
            }
        });
        match spawned {
            Ok(thread) => {
                count(&self.counts.accepted);
                connections.open.insert(id, Connection { socket, thread, in_transmission: false });
            }
            Err(_) => count(&self.counts.refused_full),
        }
    }
}

/// A connection's thread's hold on the table: gives its place back however the thread ends.
struct Leave {
    shared: Arc<Shared>,
    id: u64,
}

impl Leave {
    fn serve(&self, socket: Socket, tls: Option<TlsConfig>) -> Result<(), ConnectionError> {
        let Shared { export, limits, .. } = &*self.shared;
        connection::serve(socket, export, tls.as_ref(), limits.handshake_time, || {
            if let Some(connection) = self.shared.lock().open.get_mut(&self.id) {
                connection.in_transmission = true;
            }
        })
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        let mut connections = self.shared.lock();
        if let Some(connection) = connections.open.remove(&self.id) {
            connections.ended.push(connection.thread);
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
