//! The NBD export: on a unix socket in the disk's folder, or on TCP.
//!
//! The socket that listens outlives the server. Connections end with it, and clients connect anew.

use super::interface::{Export, Kept, TakenOver};
use crate::disk::Disk;
use crate::errors::of_nbd;
use crate::keeper::duplicate;
use crate::log;
use pagefold_block::loop_export::Users;
use pagefold_block::nbd::{self, Limits, Server, TlsConfig, UnixSocket, uri};
use pagefold_control::config::{Listen, Tls};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceDir;
use pagefold_control::instance::state::ExportState;
use pagefold_control::report::disk::ClientsReport;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;

/// A running NBD server.
pub struct Nbd {
    server: Server,
    /// The URI for clients.
    uri: String,
    /// The socket that listens, for the next server.
    listener: OwnedFd,
}

/// A socket that listens.
pub struct Bound {
    listener: OwnedFd,
    uri: String,
}

impl Bound {
    /// The state of its export.
    pub(super) fn state(&self) -> ExportState {
        ExportState::Nbd { uri: self.uri.clone() }
    }
}

/// Binds the socket of a new disk.
pub(super) fn bind(listen: Option<&Listen>, has_tls: bool, dir: &InstanceDir) -> Result<Bound> {
    let name = dir.name().as_str();
    let Some(listen) = listen else {
        // The server may not remove the file: its broker, or a command, removes it with the folder.
        let listener = UnixSocket::bind(&dir.nbd_path()).map_err(of_nbd)?.into_listener();
        return Ok(Bound { listener, uri: uri::unix(name, &dir.nbd_path()) });
    };
    let failed = |e| CliError::io(format!("listening on {}", listen.address), &e);
    let listener = TcpListener::bind(listen.address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(Bound { listener: listener.into(), uri: uri::tcp(name, address, has_tls) })
}

impl Nbd {
    /// Serves on a socket that was bound.
    pub(super) fn open(disk: &Disk, tls: Option<TlsConfig>, bound: Option<Bound>) -> Result<Self> {
        let Bound { listener, uri } = bound.ok_or_else(|| CliError::failed("no NBD socket was bound"))?;
        Self::serve(disk, tls, listener, uri)
    }

    /// Serves the clients of a socket whose server has died. They have to connect anew.
    pub(super) fn take_over(disk: &Disk, taken: TakenOver, tls: Option<TlsConfig>) -> Result<Self> {
        let (ExportState::Nbd { uri }, Some(listener)) = (taken.state, taken.listener) else {
            return Err(CliError::failed("the former server handed over no socket that listens"));
        };
        Self::serve(disk, tls, listener, uri)
    }

    fn serve(disk: &Disk, tls: Option<TlsConfig>, listener: OwnedFd, uri: String) -> Result<Self> {
        let server = server(disk)?;
        let socket = duplicate(listener.as_fd())?;
        if uri.starts_with("nbd+unix:") {
            server.serve_unix(UnixListener::from(socket)).map_err(of_nbd)?;
        } else {
            server.serve_tcp(socket.into(), tls).map_err(of_nbd)?;
        }
        Ok(Nbd { server, uri, listener })
    }
}

fn server(disk: &Disk) -> Result<Server> {
    let name = disk.name().as_str();
    let export = nbd::Export::new(name, "pagefold: volatile compressed memory", disk.device());
    Ok(Server::with_log(export.map_err(of_nbd)?, Limits::default(), log_warning))
}

/// Logs a warning of the NBD server.
fn log_warning(sentence: &str) {
    log::warning(format_args!("{sentence}"));
}

/// Reads the files of TLS, if the export has them.
pub(super) fn tls(listen: Option<&Listen>) -> Result<Option<TlsConfig>> {
    let files = listen.and_then(|listen| listen.tls.as_ref());
    let read = |tls: &Tls| TlsConfig::from_pem_files(&tls.client_ca, &tls.cert, &tls.key).map_err(of_nbd);
    files.map(read).transpose()
}

impl Export for Nbd {
    fn kind(&self) -> ExportKind {
        ExportKind::Nbd
    }

    fn kept(&self) -> Kept<'_> {
        Kept { state: self.state(), mount: None, listener: Some(self.listener.as_fd()) }
    }

    fn state(&self) -> ExportState {
        ExportState::Nbd { uri: self.uri.clone() }
    }

    fn users(&self) -> Vec<String> {
        match self.server.connections() {
            0 => Vec::new(),
            1 => vec!["1 NBD client".to_string()],
            n => vec![format!("{n} NBD clients")],
        }
    }

    fn clients(&self) -> Option<ClientsReport> {
        let counted = self.server.counters();
        Some(ClientsReport {
            open: self.server.connections(),
            most_open: self.server.limits().max_connections,
            in_handshake: self.server.handshakes(),
            accepted: counted.accepted,
            refused_full: counted.refused_full,
            refused_peer: counted.refused_peer,
            slow_handshakes: counted.slow_handshakes,
            unused: counted.unused,
            failed: counted.failed,
        })
    }

    /// Clients read the size when they open the export, and a disk without one cannot be opened.
    fn resize(&self, users: Users, change: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        match (users, self.users().as_slice()) {
            (Users::Refuse, [clients]) => {
                Err(CliError::new(Exit::Busy, format!("in use by {clients} (EBUSY); nothing was changed")))
            }
            _ => change(),
        }
    }

    fn close(&self, force: bool) -> Result<()> {
        if let (false, [users]) = (force, self.users().as_slice()) {
            return Err(CliError::new(
                Exit::Busy,
                format!("in use by {users}; disconnect first, or use --force to disconnect them"),
            ));
        }
        self.server.stop();
        Ok(())
    }
}
