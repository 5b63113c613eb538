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
        Transport::Device { without_rings } => {
            let too_many =
                "this machine may have so many CPUs that rings for all of them would take too much memory";
            let reason = without_rings.as_deref().unwrap_or(too_many);
            Some(format!("requests come through /dev/fuse, not io_uring: {reason}"))
        }
        Transport::Rings { .. } => None,
    }
}
