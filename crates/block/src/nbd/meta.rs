//! Metadata contexts: parses a client's queries, and encodes the device's extents as block status.
//!
//! The server has one context, `base:allocation`, which says which parts of the export hold data. A client that uses it
//! copies a sparse disk without reading its holes.

use super::proto::{self, Cursor};
use crate::{BlockDevice, ExtentKind};

/// The most extents in one reply. A client sends another request for the rest of its range.
const MAX_EXTENTS: usize = 1024;
/// The most bytes [`put_extents`] appends.
pub const MAX_STATUS_LEN: usize = 4 + 8 * MAX_EXTENTS;

/// The query strings of a client, in order.
#[derive(Clone)]
pub struct Queries<'a>(Cursor<'a>);

impl<'a> Iterator for Queries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.0.string()
    }
}

/// Parses the export name and the queries in an option's data; `None` if it is malformed.
pub fn parse(data: &[u8]) -> Option<(&[u8], Queries<'_>)> {
    let mut at = Cursor(data);
    let name = at.string()?;
    let count = at.u32()?;
    let queries = Queries(at);
    for _ in 0..count {
        at.string()?;
    }
    at.0.is_empty().then_some((name, queries))
}

/// Whether a query means `base:allocation`. In a listing (`set` is false), `base:` means it too.
pub fn names_allocation(query: &[u8], set: bool) -> bool {
    query == proto::BASE_ALLOCATION || (!set && query == b"base:")
}

/// Appends the context's number and the extents of a range. The range lies inside the device and `len` is not 0.
pub fn put_extents(device: &dyn BlockDevice, offset: u64, len: u32, only_one: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(&proto::BASE_ALLOCATION_ID.to_be_bytes());
    let most = if only_one { 1 } else { MAX_EXTENTS };
    let (mut at, mut left) = (offset, len);
    for _ in 0..most {
        let extent = device.extent(at, u64::from(left));
        // Clamp: a device that returns 0 or more than `left` must not cause an endless loop or a wrong length.
        let n = u32::try_from(extent.len_bytes).unwrap_or(left).clamp(1, left);
        let state = match extent.kind {
            ExtentKind::Data => 0,
            ExtentKind::Zeroes => proto::STATE_ZERO,
            ExtentKind::Hole => proto::STATE_HOLE | proto::STATE_ZERO,
        };
        out.extend_from_slice(&n.to_be_bytes());
        out.extend_from_slice(&state.to_be_bytes());
        at += u64::from(n);
        left -= n;
        if left == 0 {
            break;
        }
    }
}
