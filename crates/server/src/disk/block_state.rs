//! The states of pages as text, in the format of zram's `block_state` in debugfs: a line for each page with contents.
//!
//! The text is made in pieces of limited length and limited time, each for one request of a command. Between two of
//! them the server keeps nothing, so a command that prints slowly occupies no memory here.

use pagefold_control::error::CliError;
use pagefold_control::protocol::{MAX_RESPONSE, Response};
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::{SlotState, Store};
use pagefold_sys::timer;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Lines of a piece: a line has about 40 bytes, and one more in JSON for its end.
const LINES_MAX: usize = 16 << 10;
/// Slots that are examined between two looks at the time.
const SLOTS_PER_LOOK: u64 = 1 << 20;
/// After this time a piece ends, however short it is: a large disk may have many empty slots.
const TIME_MAX: Duration = Duration::from_millis(500);

/// A line: an index and a time of at most 20 digits each, 16 other bytes, and the second byte of the end in JSON.
const LINE_LEN_MAX: usize = 20 + 20 + 16 + 1;
const _: () = assert!(LINES_MAX * LINE_LEN_MAX + 1024 <= MAX_RESPONSE as usize);

/// The piece that begins at page `first`. The last page of the whole text is `last`, or the last of the disk.
pub fn piece(store: &Store, first: u64, last: Option<u64>) -> Result<Response, CliError> {
    let page_count = store.len_bytes().div_ceil(PAGE_SIZE as u64);
    let last = last.unwrap_or(page_count - 1);
    if let Some(outside) = [first, last].into_iter().find(|page| *page >= page_count) {
        return Err(CliError::usage(format!(
            "page {outside} is outside the disk of {page_count} pages (ERANGE)"
        )));
    }
    if first > last {
        return Err(CliError::usage(format!("the pages {first}-{last} end before they start (ERANGE)")));
    }
    // The store times accesses by a clock that stands still while the machine is suspended: an access before that
    // looks later than it was.
    let created = timer::since_boot().saturating_sub(store.elapsed());
    let deadline = Instant::now() + TIME_MAX;
    let (mut text, mut next, mut lines) = (Vec::new(), first, 0);
    while next <= last && lines < LINES_MAX && Instant::now() < deadline {
        let end = (next.saturating_add(SLOTS_PER_LOOK)).min(last + 1);
        let range = PageIndex(next)..PageIndex(end);
        next = end;
        store.each_slot_state(range, |slot| {
            push_line(&mut text, &slot, (created + slot.last_access).as_secs());
            lines += 1;
            match lines < LINES_MAX {
                true => ControlFlow::Continue(()),
                false => {
                    next = slot.index.0 + 1;
                    ControlFlow::Break(())
                }
            }
        });
    }
    let lines =
        String::from_utf8(text).map_err(|e| CliError::failed(format!("formatting the states: {e}")))?;
    Ok(Response::BlockState { lines, next: (next <= last).then_some(next) })
}

/// Appends the line of a page: the index and the time of the last access in seconds since boot, each at least 12
/// columns wide, and the flags.
fn push_line(text: &mut Vec<u8>, slot: &SlotState, last_access_s: u64) {
    push_number(text, slot.index.0);
    text.push(b' ');
    push_number(text, last_access_s);
    text.extend_from_slice(b".000000 ");
    for (flag, is_set) in [
        (b's', slot.is_same_filled),
        (b'w', slot.is_written_back),
        (b'h', slot.is_raw),
        (b'i', slot.is_idle),
        (b'r', slot.is_recompressed),
        (b'n', slot.is_incompressible),
    ] {
        text.push(if is_set { flag } else { b'.' });
    }
    text.push(b'\n');
}

/// Appends a number, at least 12 columns wide. A large disk has millions of lines, and the formatting of the standard
/// library takes longer than all else.
fn push_number(text: &mut Vec<u8>, number: u64) {
    let mut digits = [b' '; 20];
    let (mut rest, mut at) = (number, digits.len());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[at.min(8)..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(slot: &SlotState, last_access_s: u64) -> String {
        let mut text = Vec::new();
        push_line(&mut text, slot, last_access_s);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_line_is_that_of_the_kernel() {
        let mut slot = SlotState {
            index: PageIndex(0),
            last_access: Duration::ZERO,
            is_same_filled: false,
            is_written_back: false,
            is_raw: false,
            is_idle: false,
            is_recompressed: false,
            is_incompressible: false,
        };
        assert_eq!(line(&slot, 0), "           0            0.000000 ......\n");
        slot.is_same_filled = true;
        assert_eq!(line(&slot, 75), "           0           75.000000 s.....\n");
        slot = SlotState { index: PageIndex(300), is_same_filled: false, is_written_back: true, ..slot };
        assert_eq!(line(&slot, 1_234_567), "         300      1234567.000000 .w....\n");
        slot = SlotState { is_written_back: false, is_raw: true, is_incompressible: true, ..slot };
        assert_eq!(line(&slot, 9), "         300            9.000000 ..h..n\n");
        slot = SlotState { index: PageIndex(123_456_789_012), is_raw: false, is_idle: true, ..slot };
        slot.is_recompressed = true;
        assert_eq!(line(&slot, 99), "123456789012           99.000000 ...irn\n");
        slot.index = PageIndex(u64::MAX);
        assert_eq!(line(&slot, 99), "18446744073709551615           99.000000 ...irn\n");
    }
}
