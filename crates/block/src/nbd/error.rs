//! What can go wrong in setting up the door, and on one connection.

use pagefold_sys::SysError;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The door could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The export name is not one a client could ask for.
    #[error("'{name}' cannot name an NBD export: use 1 to 4096 bytes without NUL")]
    BadName {
        /// The name.
        name: String,
    },
    /// An address other machines can reach, without client certificates.
    #[error(
        "refusing to serve NBD on {addr} without TLS: anyone who reaches it could read and write the disk; \
         listen on 127.0.0.1 or [::1], or give a CA, a certificate and a key"
    )]
    NeedsTls {
        /// The address.
        addr: SocketAddr,
    },
    /// The socket's path does not fit the system's limit.
    #[error("socket path {} is longer than 107 bytes; use a shorter runtime folder", path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// The socket's folder is open to others.
    #[error("{}: {why}; the folder of a socket must belong to this user and be writable by no one else", dir.display())]
    UnsafeFolder {
        /// The folder.
        dir: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file of the TLS set-up does not serve.
    #[error("TLS: {}: {why}", path.display())]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The certificates and the key do not make a configuration.
    #[error("TLS: {0}")]
    Tls(String),
    /// The server was stopped and takes no more listeners.
    #[error("the NBD server is stopped")]
    Stopped,
    /// A system call failed.
    #[error(transparent)]
    Sys(#[from] SysError),
}

impl NbdError {
    /// An error of an I/O call: what was tried, and the answer.
    pub(super) fn io(what: impl Into<String>, e: &std::io::Error) -> Self {
        NbdError::Sys(SysError::new(what, e.raw_os_error().unwrap_or(libc::EIO)))
    }
}

/// The client broke the protocol, or the reply it is owed can no longer be told in it: the
/// connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Handshake flags this server does not know.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// An option does not begin with its magic number.
    #[error("option with bad magic {0:#x}")]
    OptionMagic(u64),
    /// A client that did not ask for fixed newstyle sent something else than an export name.
    #[error("option {0} without fixed newstyle")]
    NotFixed(u32),
    /// The export asked for is not here, in the one option that has no error reply.
    #[error("no such export")]
    NoSuchExport,
    /// An export was asked for by name before TLS, in the one option that has no error reply.
    #[error("TLS is required")]
    TlsRequired,
    /// Plain bytes followed the request for TLS; they could have been injected.
    #[error("plain data after STARTTLS")]
    DataBeforeTls,
    /// A request does not begin with its magic number.
    #[error("request with bad magic")]
    RequestMagic,
    /// Reading failed after a simple reply had promised success.
    #[error("read error after the reply had begun")]
    ReadFailedLate,
}
