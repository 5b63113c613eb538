//! How FUSE requests reach a server, in words.

use pagefold_fuse::Transport;

/// The name in reports.
pub fn name(transport: &Transport) -> &'static str {
    match transport {
        Transport::Device { .. } => "/dev/fuse",
        Transport::Rings { .. } => "io_uring",
    }
}

/// The warning that rings do not serve, for an administrator who wants them.
pub fn warning(transport: &Transport) -> Option<String> {
    match transport {
        Transport::Device { without_rings: Some(reason) } => {
            Some(format!("requests come through /dev/fuse, not io_uring: {reason}"))
        }
        _ => None,
    }
}
