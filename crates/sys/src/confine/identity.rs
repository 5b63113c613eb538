//! The user of a confined process: one that owns nothing, and another one for each process.
//!
//! The numbers are drawn at random from a range that no system assigns: processes that share a user could signal each other
//! and share limits, and with 2^28 numbers they do not. In a container, which has fewer, a small unassigned range below
//! 65536 serves. Ranges: systemd's "Users, Groups, UIDs and GIDs on systemd Systems".

use super::set_ids;
use crate::entropy;
use crate::privileges::CapabilitySet;
use crate::userns::IdMap;
use std::ops::Range;

/// The unassigned ranges of users, the best first.
const RANGES: [Range<u64>; 2] = [0x7000_0000..0x8000_0000, 60706..61184];

/// Makes the calling process, which has one thread and is root's, that of a user that owns nothing. Returns the number, or the
/// reason that this is impossible. All capabilities are gone then.
pub(super) fn become_nobody() -> Result<u32, String> {
    let failed = |what: String| format!("the user stays root: {what}");
    let (users, groups) = IdMap::of_users()
        .and_then(|users| Ok((users, IdMap::of_groups()?)))
        .map_err(|e| failed(format!("/proc/self/uid_map: {e}")))?;
    let range = RANGES.into_iter().find(|range| users.maps_all(range) && groups.maps_all(range));
    let range = range.ok_or_else(|| failed("this user namespace has no unassigned users".into()))?;
    let capabilities = rustix::thread::capabilities(None).map_err(|e| failed(e.to_string()))?;
    if !capabilities.effective.contains(CapabilitySet::KILL) {
        return Err(failed("without CAP_KILL nobody could end this process".into()));
    }
    let random = entropy::random_u64().map_err(|e| failed(e.to_string()))?;
    let id = range.start + random % (range.end - range.start);
    let id = u32::try_from(id).map_err(|e| failed(e.to_string()))?;
    set_ids(id).map_err(|e| failed(e.to_string()))?;
    Ok(id)
}
