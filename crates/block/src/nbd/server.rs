//! The server: its listeners, its connections, and how all of it ends.

use super::connection::{self, ConnectionError, Stages};
use super::listen::{Acceptor, UnixSocket, is_loopback, may_connect};
use super::places::{Opening, Places, Room};
use super::report::{Event, Reporter};
use super::tls::TlsConfig;
use super::transport::Socket;
use super::{Export, NbdError};
use rustix::net::{Shutdown, shutdown};
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What clients may take of the server. Each has a thread and at most [`CONNECTION_MEMORY`] bytes of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Clients that have the export open at once. One more is told that there are too many, unless one that has never
    /// sent a request gives way.
    pub max_connections: usize,
    /// Clients in their handshake at once. One more waits until one of them has ended it, or gives way.
    pub max_handshakes: usize,
    /// How long a client may take until it has opened the export.
    pub handshake_time: Duration,
    /// The same where others wait to begin theirs.
    pub handshake_grace: Duration,
    /// How long a client that has sent no request may have the export open when another needs its place.
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

/// The most bytes of buffers that one connection holds, TLS included.
pub const CONNECTION_MEMORY: usize = 6 << 20;

/// How often something happened since the server began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Clients that were served a handshake.
    pub accepted: u64,
    /// Clients refused for their user id.
    pub refused_peer: u64,
    /// Clients that were told that too many have the export open.
    pub refused_full: u64,
    /// Clients hung up on because they had not opened the export in time.
    pub slow_handshakes: u64,
    /// Clients hung up on because they had sent no request and another needed their place.
    pub unused: u64,
    /// Connections that ended by breaking the protocol or a failed socket, or for which no thread could be had.
    pub failed: u64,
}

#[derive(Default)]
struct Counts {
    accepted: AtomicU64,
    refused_peer: AtomicU64,
    refused_full: AtomicU64,
    slow_handshakes: AtomicU64,
    unused: AtomicU64,
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
    /// A handshake has ended, or the server is to stop.
    changed: Condvar,
    counts: Counts,
    reporter: Reporter,
}

struct Connections {
    stopping: bool,
    next_id: u64,
    places: Places<Connection>,
    /// Threads that have left the table and are about to end, to be joined.
    ended: Vec<JoinHandle<()>>,
}

struct Connection {
    socket: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl Connection {
    /// Wakes the thread from whatever it waits for; fails if the client is gone already.
    fn hang_up(&self) {
        let _ = shutdown(&*self.socket, Shutdown::Both);
    }
}

impl Server {
    /// A server without listeners yet, and without a log.
    pub fn new(export: Export, limits: Limits) -> Self {
        Self::with_log(export, limits, |_| ())
    }

    /// A server without listeners yet. It passes a sentence to `log` when something becomes of a client that its user
    /// should know of: seldom, however often that happens.
    pub fn with_log(export: Export, limits: Limits, log: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let places = Places::new(limits);
        let connections = Connections { stopping: false, next_id: 0, places, ended: Vec::new() };
        let shared = Arc::new(Shared {
            export,
            limits,
            connections: Mutex::new(connections),
            changed: Condvar::new(),
            counts: Counts::default(),
            reporter: Reporter::new(Box::new(log)),
        });
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
                    _ => shared
                        .happened(Event::WrongPeer, || "turned an NBD client of another user away".into()),
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
        self.shared.lock().places.open()
    }

    /// How many clients are in their handshake.
    pub fn handshakes(&self) -> usize {
        self.shared.lock().places.handshakes()
    }

    /// What clients may take.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        let c = &self.shared.counts;
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Counters {
            accepted: read(&c.accepted),
            refused_peer: read(&c.refused_peer),
            refused_full: read(&c.refused_full),
            slow_handshakes: read(&c.slow_handshakes),
            unused: read(&c.unused),
            failed: read(&c.failed),
        }
    }

    /// Closes the listeners, hangs up on all clients, and waits until every thread has ended.
    ///
    /// Requests in execution are finished; their replies may be lost. Afterwards nothing of the
    /// server uses the device.
    pub fn stop(&self) {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
        let acceptors = std::mem::take(&mut *self.lock_acceptors());
        acceptors.into_iter().for_each(Acceptor::stop);
        let (open, ended) = {
            let mut connections = self.shared.lock();
            (connections.places.take_all(), std::mem::take(&mut connections.ended))
        };
        open.iter().for_each(Connection::hang_up);
        for thread in ended.into_iter().chain(open.into_iter().map(|c| c.thread)) {
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

    /// Counts an event and reports it.
    fn happened(&self, event: Event, sentence: impl FnOnce() -> String) {
        let counter = match event {
            Event::Full => &self.counts.refused_full,
            Event::SlowHandshake => &self.counts.slow_handshakes,
            Event::Unused => &self.counts.unused,
            Event::WrongPeer => &self.counts.refused_peer,
            Event::Failed => &self.counts.failed,
        };
        count(counter);
        self.reporter.report(event, sentence);
    }

    /// Starts a thread for a client, as soon as there is a place for its handshake.
    fn admit(self: &Arc<Self>, client: OwnedFd, tls: Option<TlsConfig>) {
        // Held until the thread is entered in the table, so that it cannot leave before that.
        let Some(mut connections) = self.wait_for_room() else { return };
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
                count(&self.counts.accepted);
                connections.places.enter(id, Connection { socket, thread }, Instant::now());
            }
            Err(e) => {
                drop(connections);
                self.happened(Event::Failed, || {
                    format!("hung up on an NBD client: starting its thread: {e}")
                });
            }
        }
    }

    /// Waits for a place for a handshake, at most until the oldest one gives way; `None` if the server is to stop.
    ///
    /// Meanwhile other clients wait in the listener's queue.
    fn wait_for_room(&self) -> Option<MutexGuard<'_, Connections>> {
        let mut connections = self.lock();
        loop {
            for thread in connections.ended.drain(..) {
                // These threads have nothing left to do but end.
                let _ = thread.join();
            }
            if connections.stopping {
                return None;
            }
            match connections.places.room(Instant::now()) {
                Room::Free => return Some(connections),
                Room::InPlaceOf(oldest) => {
                    oldest.hang_up();
                    self.happened(Event::SlowHandshake, || {
                        let n = self.limits.max_handshakes;
                        format!("hung up on an NBD client that opened nothing, as {n} clients are in their handshake")
                    });
                }
                Room::Later(time) => {
                    let waited = self.changed.wait_timeout(connections, time);
                    connections = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}

/// A connection's thread's hold on the table: gives its place back however the thread ends.
struct ConnectionGuard {
    shared: Arc<Shared>,
    id: u64,
    /// The handshake has ended well.
    opened: Cell<bool>,
}

impl ConnectionGuard {
    fn serve(&self, socket: Socket, tls: Option<TlsConfig>) {
        let Shared { export, limits, .. } = &*self.shared;
        match connection::serve(socket, export, tls.as_ref(), limits.handshake_time, self) {
            Ok(()) => {}
            Err(ConnectionError::Io(e)) if e.kind() == ErrorKind::TimedOut && !self.opened.get() => {
                self.shared.happened(Event::SlowHandshake, || {
                    let time = limits.handshake_time.as_secs();
                    format!("hung up on an NBD client that had not opened the export after {time} s")
                });
            }
            Err(e) => self.shared.happened(Event::Failed, || format!("hung up on an NBD client: {e}")),
        }
    }
}

impl Stages for ConnectionGuard {
    fn open(&self) -> bool {
        let mut connections = self.shared.lock();
        let full = match connections.places.open_export(self.id, Instant::now()) {
            Opening::Granted => false,
            Opening::InPlaceOf(unused) => {
                unused.hang_up();
                self.shared.happened(Event::Unused, || {
                    "hung up on an NBD client that had sent no request, as another needed its place".into()
                });
                false
            }
            Opening::Full => true,
        };
        drop(connections);
        self.shared.changed.notify_all();
        if full {
            self.shared.happened(Event::Full, || {
                let n = self.shared.limits.max_connections;
                format!("turned an NBD client away: {n} have the disk open, and that is the most")
            });
        }
        self.opened.set(!full);
        !full
    }

    fn used(&self) {
        self.shared.lock().places.use_export(self.id, Instant::now());
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut connections = self.shared.lock();
        if let Some(connection) = connections.places.remove(self.id) {
            connections.ended.push(connection.thread);
        }
        drop(connections);
        self.shared.changed.notify_all();
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
