//! Checks whose failures are collected instead of ending the test.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// While a check runs: the message of its failure, with its place.
    static FAULT: RefCell<Option<String>> = const { RefCell::new(None) };
    static IS_CHECKING: RefCell<bool> = const { RefCell::new(false) };
}

/// Runs a check. Returns the message and the place of its panic, which is not printed.
pub fn caught<T>(check: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_CHECKING.with_borrow(|is_checking| *is_checking) {
                return default(info);
            }
            let payload = info.payload_as_str().unwrap_or_default();
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            FAULT.set(Some(format!("{payload} ({place})")));
        }));
    });
    IS_CHECKING.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(check));
    IS_CHECKING.set(false);
    result.map_err(|_| FAULT.take().unwrap_or_default())
}
