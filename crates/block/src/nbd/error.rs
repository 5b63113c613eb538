//! Errors of setting up the NBD export ([`NbdError`]), and of one connection ([`ProtocolError`]).

use pagefold_sys::SysError;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The export could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// No client could request this export name.
    #[error("'{name}' cannot name an NBD export: use 1 to 4096 bytes without NUL")]
    BadName {
        /// The name.
        name: String,
    },
    /// Other machines can reach the address, and no TLS is configured to authenticate clients.
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
    /// Other users can write to the socket's folder, or one of them owns it.
    #[error("{}: {why}; the folder of a socket must belong to this user and be writable by no one else", dir.display())]
    UnsafeFolder {
        /// The folder.
        dir: PathBuf,
        /// The reason.
        why: &'static str,
    },
    /// A certificate or key file cannot be used.
    #[error("TLS: {}: {why}", path.display())]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The TLS library refused the configuration.
    #[error("TLS: {0}")]
    Tls(String),
    /// The server is stopped and accepts no listeners.
    #[error("the NBD server is stopped")]
    Stopped,
    /// A system call failed.
    #[error(transparent)]
    Sys(#[from] SysError),
}

impl NbdError {
    /// Makes the error of a failed I/O call. `action` says what was tried.
    pub(super) fn io(action: impl Into<String>, e: &std::io::Error) -> Self {
        NbdError::Sys(SysError::new(action, e.raw_os_error().unwrap_or(libc::EIO)))
    }
}

/// The client broke the protocol, or the protocol has no way to report an error to it. The server closes the
/// connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The client sent handshake flags that this server does not know.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// An option does not begin with its magic number.
    #[error("option with bad magic {0:#x}")]
    OptionMagic(u64),
    /// A client that did not negotiate fixed newstyle sent another option than `EXPORT_NAME`.
    #[error("option {0} without fixed newstyle")]
    NotFixed(u32),
    /// The client requested an unknown export by `EXPORT_NAME`, the one option that has no error reply.
    #[error("no such export")]
    NoSuchExport,
    /// The client sent `EXPORT_NAME` before TLS, the one option that has no error reply.
    #[error("TLS is required")]
    TlsRequired,
    /// Plain bytes followed `STARTTLS`; an attacker could have injected them.
    #[error("plain data after STARTTLS")]
    DataBeforeTls,
    /// A request does not begin with its magic number.
    #[error("request with bad magic")]
    RequestMagic,
    /// A read failed after the header of a simple reply, which reports success, was sent.
    #[error("read error after the reply had begun")]
    ReadFailedLate,
}
