//! The NBD export: on a unix socket in the disk's folder, or on TCP.
//!
//! The socket that listens outlives the server. Connections end with it, and clients connect anew.

use super::interface::{Export, Kept, Opening, TakenOver};
use crate::disk::Disk;
use crate::errors::of_nbd;
use crate::keeper::duplicate;
use crate::log;
use pagefold_block::loop_export::Users;
use pagefold_block::nbd::{self, Limits, Server, TlsConfig, UnixSocket, uri};
use pagefold_control::config::{Listen, Tls};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::state::ExportState;
use pagefold_control::report::disk::ClientsReport;
use pagefold_sys::privileges;
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

impl Nbd {
    /// Binds the socket, drops all capabilities, and starts to serve.
    pub(super) fn open(opening: &Opening<'_>) -> Result<Self> {
        let Opening { config, disk, dir, .. } = *opening;
        let name = disk.name().as_str();
        // It starts its threads when it begins to serve, without capabilities.
        let server = server(disk)?;
        let (uri, listener) = match &config.listen {
            None => {
                let socket = UnixSocket::bind(&dir.nbd_path()).map_err(of_nbd)?;
                let listener = duplicate(socket.as_fd())?;
                privileges::drop_capabilities()?;
                server.serve_unix(socket).map_err(of_nbd)?;
                (uri::unix(name, &dir.nbd_path()), listener)
            }
            Some(listen) => serve_tcp(&server, listen, name)?,
        };
        Ok(Nbd { server, uri, listener })
    }

    /// Serves the clients of a socket whose server has died. They have to connect anew.
    pub(super) fn take_over(disk: &Disk, taken: TakenOver, tls: Option<TlsConfig>) -> Result<Self> {
        let (ExportState::Nbd { uri }, Some(listener)) = (taken.state, taken.listener) else {
            return Err(CliError::failed("the former server handed over no socket that listens"));
        };
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

fn serve_tcp(server: &Server, listen: &Listen, name: &str) -> Result<(String, OwnedFd)> {
    let failed = |e| CliError::io(format!("listening on {}", listen.address), &e);
    let listener = TcpListener::bind(listen.address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let tls = tls(Some(listen))?;
    let other = duplicate(listener.as_fd())?;
    privileges::drop_capabilities()?;
    let has_tls = tls.is_some();
    server.serve_tcp(listener, tls).map_err(of_nbd)?;
    Ok((uri::tcp(name, address, has_tls), other))
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
