//! The user of a confined process: one that owns nothing, and another one for each process.
//!
//! The numbers are drawn at random from a range that no system assigns: processes that share a user could signal each other
//! and share limits, and with 2^28 numbers they do not. In a container, which has fewer, a small unassigned range below
//! 65536 serves. Ranges: systemd's "Users, Groups, UIDs and GIDs on systemd Systems".

use super::set_ids;
use crate::entropy;
use crate::privileges::CapabilitySet;
use std::ops::Range;

/// The unassigned ranges of users, the best first.
const RANGES: [Range<u64>; 2] = [0x7000_0000..0x8000_0000, 60706..61184];

/// Makes the calling process, which has one thread and is root's, that of a user that owns nothing. Returns the number, or the
/// reason that this is impossible. All capabilities are gone then.
pub(super) fn become_nobody() -> Result<u32, String> {
    let failed = |what: String| format!("the user stays root: {what}");
    let maps = ["uid_map", "gid_map"].map(|name| std::fs::read_to_string(format!("/proc/self/{name}")));
    let [users, groups] = maps;
    let (users, groups) = users
        .and_then(|users| Ok((users, groups?)))
        .map_err(|e| failed(format!("/proc/self/uid_map: {e}")))?;
    let range = RANGES.into_iter().find(|range| maps_all(&users, range) && maps_all(&groups, range));
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

/// Whether a table of a user namespace (lines of first number inside, first outside, count) has all of `range`.
fn maps_all(table: &str, range: &Range<u64>) -> bool {
    table.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().filter_map(|word| word.parse::<u64>().ok());
        let (first, count) = (numbers.next(), numbers.nth(1));
        matches!((first, count), (Some(first), Some(count))
            if first <= range.start && range.end <= first.saturating_add(count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_used_only_if_the_namespace_has_all_of_it() {
        let whole = "         0          0 4294967295\n";
        let container = "0 100000 65536\n";
        let one = "0 1000 1\n";
        assert!(RANGES.iter().all(|range| maps_all(whole, range)));
        assert_eq!(RANGES.map(|range| maps_all(container, &range)), [false, true]);
        assert_eq!(RANGES.map(|range| maps_all(one, &range)), [false, false]);
        assert!(!maps_all("", &RANGES[1]) && !maps_all("0 0\nx y z\n", &RANGES[1]));
    }
}
