//! NBD URIs, the addresses that users pass to clients.
//!
//! The NBD project specifies the schemes (`doc/uri.md`): `nbd+unix:///NAME?socket=PATH`,
//! `nbd://HOST:PORT/NAME`, `nbds://` with TLS.

use std::fmt::Write;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The URI of the export `name` on the unix socket at `socket`.
pub fn unix(name: &str, socket: &Path) -> String {
    format!("nbd+unix:///{}?socket={}", escape(name.as_bytes()), escape(socket.as_os_str().as_bytes()))
}

/// The URI of the export `name` at a TCP address, with or without TLS.
pub fn tcp(name: &str, addr: SocketAddr, tls: bool) -> String {
    format!("{}://{addr}/{}", if tls { "nbds" } else { "nbd" }, escape(name.as_bytes()))
}

/// Percent-encodes all but RFC 3986's unreserved characters and the slash.
fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &b in bytes {
        if b.is_ascii_alphanumeric() || b"-._~/".contains(&b) {
            out.push(char::from(b));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{b:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_percent_encoded() {
        assert_eq!(
            unix("a b/ü?", Path::new("/run/p&f/x.sock")),
            "nbd+unix:///a%20b/%C3%BC%3F?socket=/run/p%26f/x.sock"
        );
        let v4 = SocketAddr::from(([127, 0, 0, 1], 10809));
        assert_eq!(tcp("disk", v4, false), "nbd://127.0.0.1:10809/disk");
        let v6 = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 1));
        assert_eq!(tcp("disk", v6, true), "nbds://[::1]:1/disk");
    }
}
