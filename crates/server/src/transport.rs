//! How FUSE requests reach a server, in words.

use pagefold_control::report::disk::RingsReport;
use pagefold_fuse::Transport;

/// The name in reports.
pub fn name(transport: &Transport) -> &'static str {
    match transport {
        Transport::Device { .. } => "/dev/fuse",
        Transport::Rings { .. } => "io_uring",
    }
}

/// The buffers of rings, if they serve.
pub fn rings(transport: &Transport) -> Option<RingsReport> {
    match *transport {
        Transport::Device { .. } => None,
        Transport::Rings { buffer_bytes, request_bytes, .. } => {
            Some(RingsReport { buffer_bytes: buffer_bytes as u64, max_request_bytes: request_bytes as u64 })
        }
    }
}

/// The warning that rings do not serve, for an administrator who wants them.
pub fn warning(transport: &Transport) -> Option<String> {
    match transport {
        Transport::Device { without_rings } => {
            let no_room =
                "rings for all CPUs that this machine may have would take too much of the disk's memory";
            let reason = without_rings.as_deref().unwrap_or(no_room);
            Some(format!("requests come through /dev/fuse, not io_uring: {reason}"))
        }
        Transport::Rings { .. } => None,
    }
}

/// Why a mount does not outlive its server; `None` if it does. `kept` is what its session says.
pub fn not_kept(kept: Option<&Result<(), String>>, transport: &Transport) -> Option<String> {
    match (kept, transport) {
        (Some(Ok(())), _) => None,
        (Some(Err(why)), _) => Some(why.clone()),
        (None, Transport::Rings { .. }) => {
            Some("requests come through rings, and those that a dead server has read are lost".into())
        }
        (None, Transport::Device { .. }) => Some("it has no keeper".into()),
    }
}
