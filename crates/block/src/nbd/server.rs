//! [`Server`], the listeners and connections of an export, and how they end.
//!
//! An acceptor thread waits for a handshake slot, starts the thread of the connection, and adds it to the client
//! table. The thread of the connection runs [`connection::serve`]. When it ends, its [`ConnectionGuard`] moves its
//! join handle from the table to the list of ended threads, which the next accepted client or [`Server::stop`] joins.
//!
//! One lock protects the table and that list ([`Connections`]). Its condition variable wakes acceptors when a
//! handshake has ended or the server is to stop. The log is called under this lock in some cases, so it must not call
//! the server.

use super::client_table::{ClientTable, HandshakeSlot, OpenResult};
use super::connection::{self, ConnectionError, ExportAccess};
use super::limits::Limits;
use super::listen::{Acceptor, UnixSocket, is_loopback, may_connect};
use super::report::{Event, Reporter};
use super::tls::TlsConfig;
use super::transport::Socket;
use super::{Export, NbdError};
use pagefold_sys::confine;
use rustix::net::{Shutdown, shutdown};
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// The most bytes of buffers that one connection holds for itself, TLS and requests that wait for the medium included. For
/// such requests all connections of a server together hold up to [`MAX_DATA`](super::MAX_DATA) bytes more.
pub const CONNECTION_MEMORY: usize = (6 << 20) + super::request_memory::OWN_BYTES;

/// Counts of events since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Clients that began a handshake.
    pub accepted: u64,
    /// Clients refused for their user id.
    pub refused_peer: u64,
    /// Clients refused because too many have the export open.
    pub refused_full: u64,
    /// Clients disconnected because they had not opened the export in time.
    pub slow_handshakes: u64,
    /// Clients disconnected in favour of another because they had sent no request.
    pub unused: u64,
    /// Connections that ended because the client broke the protocol, the socket failed, or no thread could be started.
    pub failed: u64,
}

/// [`Counters`] as the threads of the server update them.
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
    /// A handshake has ended, or the server is to stop.
    changed: Condvar,
    accepted: AtomicU64,
    reporter: Reporter,
}

struct Connections {
    stopping: bool,
    next_id: u64,
    clients: ClientTable<Connection>,
    /// Threads that have removed themselves from the table and are about to end; the next acceptor or `stop` joins
    /// them.
    ended: Vec<JoinHandle<()>>,
}

struct Connection {
    socket: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl Connection {
    /// Shuts the socket down, so that every wait of the connection's thread ends. An error means that it is
    /// disconnected already.
    fn disconnect(&self) {
        let _ = shutdown(&*self.socket, Shutdown::Both);
    }
}

impl Server {
    /// Makes a server without listeners and without a log.
    pub fn new(export: Export, limits: Limits) -> Self {
        Self::with_log(export, limits, |_| ())
    }

    /// Makes a server without listeners, and starts no thread yet: a caller that drops its privileges before it adds the first
    /// listener has no thread with them. It calls `log` with a sentence when it refuses or disconnects a client, at
    /// most once a minute for each reason. `log` must not call the server.
    pub fn with_log(export: Export, limits: Limits, log: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let clients = ClientTable::new(limits);
        let connections = Connections { stopping: false, next_id: 0, clients, ended: Vec::new() };
        let shared = Arc::new(Shared {
            export: export.of_server(),
            limits,
            connections: Mutex::new(connections),
            changed: Condvar::new(),
            accepted: AtomicU64::default(),
            reporter: Reporter::new(Box::new(log)),
        });
        Server { shared, acceptors: Mutex::default() }
    }

    /// Serves clients of a unix socket, if they run as this process's user or root.
    pub fn serve_unix(&self, socket: impl Into<UnixSocket>) -> Result<(), NbdError> {
        let UnixSocket { listener, file } = socket.into();
        let shared = self.shared.clone();
        self.add(|| {
            Acceptor::start(listener, file, move |client| {
                let own = confine::owner_uid();
                match pagefold_sys::peer::credentials(client.as_fd()) {
                    Ok(peer) if may_connect(peer.uid, own) => shared.admit(client, None),
                    _ => shared
                        .reporter
                        .report(Event::WrongPeer, || "refused an NBD client of another user".into()),
                }
            })
        })
    }

    /// Serves clients of a TCP socket. With `tls`, clients must use TLS and have a certificate.
    ///
    /// Without `tls`, the socket must be bound to a loopback address, and every user of this machine is served.
    pub fn serve_tcp(&self, listener: TcpListener, tls: Option<TlsConfig>) -> Result<(), NbdError> {
        let addr = listener.local_addr().map_err(|e| NbdError::io("reading the listener's address", &e))?;
        if tls.is_none() && !is_loopback(addr) {
            return Err(NbdError::NeedsTls { addr });
        }
        let shared = self.shared.clone();
        self.add(|| Acceptor::start(listener.into(), None, move |client| shared.admit(client, tls.clone())))
    }

    /// The number of clients that have the export open. A client in its handshake does not count.
    pub fn connections(&self) -> usize {
        self.shared.lock().clients.open()
    }

    /// The number of clients in their handshake.
    pub fn handshakes(&self) -> usize {
        self.shared.lock().clients.handshakes()
    }

    /// The limits of clients.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// The counts so far.
    pub fn counters(&self) -> Counters {
        let count = |event| self.shared.reporter.count(event);
        Counters {
            accepted: self.shared.accepted.load(Ordering::Relaxed),
            refused_peer: count(Event::WrongPeer),
            refused_full: count(Event::Full),
            slow_handshakes: count(Event::SlowHandshake),
            unused: count(Event::Unused),
            failed: count(Event::Failed),
        }
    }

    /// Closes the listeners, disconnects all clients, and waits until every thread has ended.
    ///
    /// Requests in execution are finished, long ones up to their next piece; their replies may be lost. Those that wait in a
    /// queue are not executed: it may have thousands that zero 4 GiB each. Afterwards the server does not use the device.
    pub fn stop(&self) {
        self.shared.export.stop();
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
        let acceptors = std::mem::take(&mut *self.lock_acceptors());
        acceptors.into_iter().for_each(Acceptor::stop);
        let (open, ended) = {
            let mut connections = self.shared.lock();
            (connections.clients.take_all(), std::mem::take(&mut connections.ended))
        };
        open.iter().for_each(Connection::disconnect);
        for thread in ended.into_iter().chain(open.into_iter().map(|c| c.thread)) {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }

    /// Starts a listener unless the server is stopping.
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

    /// Starts the thread of a client as soon as the limit of handshakes allows. An acceptor calls this.
    fn admit(self: &Arc<Self>, client: OwnedFd, tls: Option<TlsConfig>) {
        // Hold the lock until the thread is in the table: it cannot remove itself before that.
        let Some(mut connections) = self.wait_for_handshake_slot() else { return };
        let socket = Arc::new(client);
        let id = connections.next_id;
        connections.next_id += 1;
        let (shared, for_thread) = (self.clone(), socket.clone());
        let spawned = std::thread::Builder::new().name(format!("nbd-{id}")).spawn(move || {
            let guard = ConnectionGuard { shared, id, opened: Cell::new(false) };
            guard.serve(Socket::new(for_thread), tls);
        });
        match spawned {
            Ok(thread) => {
                self.accepted.fetch_add(1, Ordering::Relaxed);
                connections.clients.insert(id, Connection { socket, thread }, Instant::now());
            }
            Err(e) => {
                drop(connections);
                self.reporter.report(Event::Failed, || {
                    format!("disconnected an NBD client: starting its thread: {e}")
                });
            }
        }
    }

    /// Waits until the limit of handshakes allows another client, at most until the oldest handshake may be evicted.
    /// Returns `None` if the server is to stop.
    ///
    /// Meanwhile further clients wait in the listener's queue.
    fn wait_for_handshake_slot(&self) -> Option<MutexGuard<'_, Connections>> {
        let mut connections = self.lock();
        loop {
            for thread in connections.ended.drain(..) {
                // These threads end without another step, so the join does not block.
                let _ = thread.join();
            }
            if connections.stopping {
                return None;
            }
            match connections.clients.claim_handshake_slot(Instant::now()) {
                HandshakeSlot::Free => return Some(connections),
                HandshakeSlot::Evicts(oldest) => {
                    oldest.disconnect();
                    self.reporter.report(Event::SlowHandshake, || {
                        let n = self.limits.max_handshakes;
                        format!("disconnected an NBD client that had not opened the export, as {n} are in their handshake")
                    });
                }
                HandshakeSlot::RetryAfter(time) => {
                    let woken = self.changed.wait_timeout(connections, time);
                    connections = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}

/// Removes a connection from the table when its thread ends, also by a panic.
struct ConnectionGuard {
    shared: Arc<Shared>,
    id: u64,
    /// Whether the client has opened the export.
    opened: Cell<bool>,
}

impl ConnectionGuard {
    fn serve(&self, socket: Socket, tls: Option<TlsConfig>) {
        let Shared { export, limits, .. } = &*self.shared;
        match connection::serve(socket, export, tls.as_ref(), limits, self) {
            Ok(()) => {}
            Err(ConnectionError::Io(e)) if e.kind() == ErrorKind::TimedOut && !self.opened.get() => {
                self.shared.reporter.report(Event::SlowHandshake, || {
                    let time = limits.handshake_time.as_secs();
                    format!("disconnected an NBD client that had not opened the export after {time} s")
                });
            }
            Err(e) => {
                self.shared.reporter.report(Event::Failed, || format!("disconnected an NBD client: {e}"))
            }
        }
    }
}

impl ExportAccess for ConnectionGuard {
    fn try_open(&self) -> bool {
        let mut connections = self.shared.lock();
        let full = match connections.clients.open_export(self.id, Instant::now()) {
            OpenResult::Granted => false,
            OpenResult::Evicts(unused) => {
                unused.disconnect();
                self.shared.reporter.report(Event::Unused, || {
                    "disconnected an NBD client that had sent no request, in favour of another client".into()
                });
                false
            }
            OpenResult::Full => true,
        };
        drop(connections);
        self.shared.changed.notify_all();
        if full {
            self.shared.reporter.report(Event::Full, || {
                let n = self.shared.limits.max_connections;
                format!("refused an NBD client: {n} have the disk open, which is the limit")
            });
        }
        self.opened.set(!full);
        !full
    }

    fn first_request(&self) {
        self.shared.lock().clients.mark_used(self.id, Instant::now());
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut connections = self.shared.lock();
        if let Some(connection) = connections.clients.remove(self.id) {
            connections.ended.push(connection.thread);
        }
        drop(connections);
        self.shared.changed.notify_all();
    }
}
