//! The NBD export: on a unix socket in the disk's folder, or on TCP.

use super::interface::{Export, Opening};
use crate::errors::of_nbd;
use crate::log;
use pagefold_block::loop_export::Users;
use pagefold_block::nbd::{self, Limits, Server, TlsConfig, UnixSocket, uri};
use pagefold_control::config::Listen;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::state::ExportState;
use pagefold_control::report::disk::ClientsReport;
use pagefold_sys::privileges;
use std::net::TcpListener;

/// A running NBD server.
pub struct Nbd {
    server: Server,
    /// The URI for clients.
    uri: String,
}

impl Nbd {
    /// Binds the socket, drops all capabilities, and starts to serve.
    pub(super) fn open(opening: &Opening<'_>) -> Result<Self> {
        let Opening { config, disk, dir, .. } = *opening;
        let name = disk.name().as_str();
        let export =
            nbd::Export::new(name, "pagefold: volatile compressed memory", disk.device()).map_err(of_nbd)?;
        // It starts its threads when it begins to serve, without capabilities.
        let server = Server::with_log(export, Limits::default(), log_warning);
        let uri = match &config.listen {
            None => {
                let socket = UnixSocket::bind(&dir.nbd_path()).map_err(of_nbd)?;
                privileges::drop_capabilities()?;
                server.serve_unix(socket).map_err(of_nbd)?;
                uri::unix(name, &dir.nbd_path())
            }
            Some(listen) => serve_tcp(&server, listen, name)?,
        };
        Ok(Nbd { server, uri })
    }
}

/// Logs a warning of the NBD server.
fn log_warning(sentence: &str) {
    log::warning(format_args!("{sentence}"));
}

fn serve_tcp(server: &Server, listen: &Listen, name: &str) -> Result<String> {
    let failed = |e| CliError::io(format!("listening on {}", listen.address), &e);
    let listener = TcpListener::bind(listen.address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let tls = match &listen.tls {
        Some(tls) => Some(TlsConfig::from_pem_files(&tls.client_ca, &tls.cert, &tls.key).map_err(of_nbd)?),
        None => None,
    };
    privileges::drop_capabilities()?;
    let has_tls = tls.is_some();
    server.serve_tcp(listener, tls).map_err(of_nbd)?;
    Ok(uri::tcp(name, address, has_tls))
}

impl Export for Nbd {
    fn kind(&self) -> ExportKind {
        ExportKind::Nbd
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
