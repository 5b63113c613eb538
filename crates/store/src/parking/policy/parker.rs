//! The thread that parks.

use super::condition::{Condition, PolicyState};
use super::driver::Driver;
use super::engine::Engine;
use super::quiet::Load;
use super::settings::Policy;
use super::store::StoreEngine;
use crate::engine::Store;
use pagefold_sys::pressure::{self, Resource};
use pagefold_sys::signal;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Automatic parking of one store: a thread, ended and waited for when this is dropped. Pages that are being
/// written then are completed; no others are begun.
pub struct Parker {
    store: Arc<Store>,
    thread: Option<JoinHandle<()>>,
}

impl Parker {
    /// Starts parking. Without a backing there is nothing to do and no thread. An error is returned if the store
    /// has a parker already, or there can be no thread.
    pub fn start(store: Arc<Store>) -> io::Result<Self> {
        let Some(state) = store.parking().map(|parking| parking.policy().state()) else {
            return Ok(Parker { store, thread: None });
        };
        if !state.throttle().begin() {
            let why = "the store's pages are parked automatically already";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let engine = StoreEngine::new(store.clone());
        // Who waits for room may be in a signal handler: a handler that ran in the parker, and waited for room, would
        // wait for ever.
        let builder = std::thread::Builder::new().name("pagefold-park".into());
        let thread = signal::spawn_masked(builder, move || {
            if let Some(parking) = engine.parking() {
                run(&engine, parking.policy(), &mut load);
            }
        });
        let thread = thread.inspect_err(|_| state.throttle().end())?;
        Ok(Parker { store, thread: Some(thread) })
    }
}

impl Drop for Parker {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if let Some(parking) = self.store.parking() {
            parking.policy().state().throttle().stop();
        }
        // A panic in it has been reported by the panic hook, and `Ending` has told the writers.
        let _ = thread.join();
    }
}

/// How the machine is; `None` where the kernel does not say.
fn load() -> Option<Load> {
    Some(Load { cpu: pressure::read(Resource::Cpu)?, io: pressure::read(Resource::Io)? })
}

/// Parks until told to stop.
pub(super) fn run(engine: &dyn Engine, policy: &Policy, load: &mut dyn FnMut() -> Option<Load>) {
    let _ending = Ending(policy.state());
    let throttle = policy.state().throttle();
    let mut driver = Driver::new(engine, policy, load);
    while !throttle.is_stopping() {
        let wait = driver.step();
        throttle.wait_for_work(wait);
    }
}

/// Leaves nobody waiting for a thread that is gone, whatever ended it.
struct Ending<'a>(&'a PolicyState);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.set_condition(Condition::Off);
        self.0.throttle().end();
    }
}
