//! The thread of automatic writeback.

use crate::engine::Store;
use crate::policy;
use crate::writeback::Sweeper;
use pagefold_sys::signal;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Automatic writeback of one store: owns the thread, and stops and joins it on drop. Writes in flight are completed;
/// no others begin.
pub struct WritebackThread {
    store: Arc<Store>,
    thread: Option<JoinHandle<()>>,
}

impl WritebackThread {
    /// Starts the writeback thread; a store without a backing needs none and gets none. Returns an error if the store
    /// has a writeback thread already, or the thread cannot be started.
    pub fn start(store: Arc<Store>) -> io::Result<Self> {
        let Some(throttle) = store.writeback().map(|writeback| writeback.policy().throttle()) else {
            return Ok(WritebackThread { store, thread: None });
        };
        if !throttle.register_thread() {
            let why = "the store's pages are written back automatically already";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let thread_store = store.clone();
        // A signal handler may fault on compressed memory and wait in the throttle. In the writeback thread itself it
        // would wait for ever, so this thread blocks all signals.
        let builder = std::thread::Builder::new().name("pagefold-wb".into());
        let thread = signal::spawn_masked(builder, move || {
            if let Some(writeback) = thread_store.writeback() {
                let target = Sweeper::new(&thread_store.pages, writeback);
                policy::run(&target, writeback.policy(), &mut policy::machine_load);
            }
        });
        let thread = thread.inspect_err(|_| throttle.unregister_thread())?;
        Ok(WritebackThread { store, thread: Some(thread) })
    }
}

impl Drop for WritebackThread {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if let Some(writeback) = self.store.writeback() {
            writeback.policy().throttle().stop();
        }
        // The panic hook has reported a panic of the thread, and `policy::run` has woken the waiting writers.
        let _ = thread.join();
    }
}
