//! The NBD door, on a unix socket in the disk's folder or on TCP.

use super::Door;
use crate::failure::{Exit, Failure, Outcome};
use crate::runtime::DiskDir;
use crate::runtime::state::DoorState;
use crate::service::config::{Listen, ServeConfig};
use crate::service::disk::Disk;
use crate::service::report::ClientsReport;
use pagefold_block::nbd::{Export, Limits, NbdError, Server, TlsConfig, UnixSocket, uri};
use pagefold_sys::privileges;
use std::io::Write;
use std::net::TcpListener;

/// The server and the URI its clients use.
pub struct Nbd {
    server: Server,
    uri: String,
}

impl Nbd {
    /// Binds first, then gives up the capabilities, then serves.
    pub fn open(config: &ServeConfig, disk: &Disk, dir: &DiskDir) -> Outcome<Self> {
        let name = disk.name().as_str();
        let export = Export::new(name, "pagefold: volatile compressed memory", disk.device())?;
        let server = Server::with_log(export, Limits::default(), log);
        let uri = match &config.listen {
            None => {
                let socket = UnixSocket::bind(&dir.nbd_path())?;
                privileges::drop_capabilities()?;
                server.serve_unix(socket)?;
                uri::unix(name, &dir.nbd_path())
            }
            Some(listen) => serve_tcp(&server, listen, name)?,
        };
        Ok(Nbd { server, uri })
    }
}

/// Writes a line to the disk's log. If that cannot be written there is nobody to tell.
fn log(sentence: &str) {
    let _ = writeln!(std::io::stderr(), "warning: {sentence}");
}

fn serve_tcp(server: &Server, listen: &Listen, name: &str) -> Outcome<String> {
    let failed = |e| Failure::io(format!("listening on {}", listen.address), &e);
    let listener = TcpListener::bind(listen.address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let tls = match &listen.tls {
        Some(tls) => Some(TlsConfig::from_pem_files(&tls.client_ca, &tls.cert, &tls.key)?),
        None => None,
    };
    privileges::drop_capabilities()?;
    let has_tls = tls.is_some();
    server.serve_tcp(listener, tls)?;
    Ok(uri::tcp(name, address, has_tls))
}

impl Door for Nbd {
    fn kind(&self) -> &'static str {
        "nbd"
    }

    fn state(&self) -> DoorState {
        DoorState::Nbd { uri: self.uri.clone() }
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

    fn close(&self, force: bool) -> Outcome<()> {
        if let (false, [users]) = (force, self.users().as_slice()) {
            return Err(Failure::new(
                Exit::Busy,
                format!("in use by {users}; disconnect first, or use --force to hang up on them"),
            ));
        }
        self.server.stop();
        Ok(())
    }
}

impl From<NbdError> for Failure {
    fn from(e: NbdError) -> Self {
        let exit = match &e {
            NbdError::BadName { .. }
            | NbdError::NeedsTls { .. }
            | NbdError::TlsFile { .. }
            | NbdError::Tls(_) => Exit::Usage,
            NbdError::PathTooLong { .. } | NbdError::UnsafeFolder { .. } => Exit::Unavailable,
            NbdError::Stopped => Exit::Failed,
            NbdError::Sys(e) => Failure::from(e.clone()).exit,
        };
        Failure::new(exit, format!("opening the NBD door: {e}"))
    }
}
