//! Giving a disk its size, and taking it away: the steps that the disk, its export and its passes take together.
//!
//! The lock of the disk is held during both, so no other change of the life cycle, and of the settings, happens meanwhile.
//! Reports and attributes do not wait for it.

use super::server::Server;
use crate::disk;
use crate::export::Users;
use crate::log;
use pagefold_control::error::Result;
use std::sync::Arc;

/// Makes a store of the settings, and gives the device its size. After an error the disk has no size, as before.
pub fn initialise(server: &Server, size_bytes: u64) -> Result<()> {
    let lock = server.disk.lock();
    if server.disk.running().is_some() {
        return Err(disk::has_size());
    }
    let live = Arc::new(server.disk.new_running(size_bytes)?);
    let put_in = &mut || {
        lock.set_running(Some(live.clone()));
        Ok(())
    };
    // Before users can write: if this process dies then, the next one has the size.
    let done = server
        .hand_over_with(Some(&live), &lock)
        .and_then(|()| server.export.resize(Users::Ignore, put_in))
        .and_then(|()| server.passes.start_threads(&live))
        .and_then(|()| server.record_size());
    if done.is_err() {
        // The first error says more, and the export may not be able to change the size.
        let take_out = &mut || {
            lock.set_running(None);
            Ok(())
        };
        let _ = server.export.resize(Users::Ignore, take_out);
        lock.set_running(None);
        server.passes.end(&live.store);
        let _ = server.hand_over_with(None, &lock);
    }
    done
}

/// Discards the store, and makes the settings those of a new disk. Fails as busy while the device is in use; then nothing
/// is changed.
pub fn reset(server: &Server) -> Result<()> {
    let lock = server.disk.lock();
    let live = server.disk.running();
    let take_out = &mut || {
        lock.clear();
        Ok(())
    };
    // Requests in flight may wait for a save.
    if server.export.users().is_empty() {
        server.passes.begin_end();
    }
    server.export.resize(Users::Refuse, take_out).inspect_err(|_| server.passes.go_on())?;
    if let Some(live) = live {
        server.passes.end(&live.store);
    }
    // If this process dies before that, nothing was reset.
    server.hand_over_with(None, &lock)?;
    if let Err(e) = server.disk.empty_memory() {
        log::warning(format_args!("the memory of the former contents is returned later: {e}"));
    }
    if let Err(e) = server.record_size() {
        log::warning(format_args!("{e}; the next command sees the former size of this disk"));
    }
    Ok(())
}
