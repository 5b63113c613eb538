//! Automatic writeback: when pages are written back without a request.
//!
//! The writeback thread (`engine::WritebackThread`) runs [`run`], which calls [`Driver::step`](driver::Driver::step)
//! in a loop and sleeps in the throttle between steps. The driver accesses the store through a narrow trait
//! ([`WritebackTarget`](target::WritebackTarget)), and each input of its decisions is a value in another module. So
//! each decision is tested with numbers, and the whole with a simulated store and clock; only the thread itself
//! sleeps.
//!
//! | module | contains |
//! |---|---|
//! | `settings` | the settings, and the condition that users see |
//! | `choose` | which pages: the marks of the memory limit, and the age from which pages are written back |
//! | `quota` | how many bytes: a rate (token bucket), and a budget for 24 hours |
//! | `backoff` | when to wait: after failures, while the machine is busy, between walks over all slots |
//! | `throttle` | where writers at the memory limit wait for memory, and the writeback thread for work |
//! | `driver` | one step: combines the decisions of the modules above |
//! | `target` | the store as the driver sees it |
//!
//! Locks: the settings are atomics; the condition has a mutex, and the throttle has one. Both are held for a few
//! instructions, and no other lock is taken under them. How a page is written back is the business of `writeback`.

mod backoff;
mod choose;
mod driver;
mod quota;
mod settings;
mod target;
mod throttle;

#[cfg(test)]
mod tests;

pub(crate) use settings::BUSY_PERCENT;
pub use settings::{Condition, Policy};
pub(crate) use target::{Memory, Sweep, SweepResult, WritebackTarget};
pub use throttle::Throttled;

pub(crate) use backoff::Load;
use driver::Driver;
use pagefold_sys::pressure::{self, Resource};

/// The machine's CPU and I/O pressure; `None` if the kernel does not report it.
pub(crate) fn machine_load() -> Option<Load> {
    Some(Load { cpu: pressure::read(Resource::Cpu)?, io: pressure::read(Resource::Io)? })
}

/// Runs automatic writeback of `target` until [`Throttle::stop`](throttle::Throttle::stop). Called in the writeback
/// thread.
pub(crate) fn run(target: &dyn WritebackTarget, policy: &Policy, load: &mut dyn FnMut() -> Option<Load>) {
    let _unregister = UnregisterOnDrop(policy);
    let throttle = policy.throttle();
    let mut driver = Driver::new(target, policy, load);
    while !throttle.is_stopping() {
        pagefold_sys::injected_panic::at(|| "writeback".into());
        let wait = driver.step();
        throttle.wait_for_work(wait);
    }
}

/// Unregisters the writeback thread from the throttle when it ends, even by a panic, so that no writer waits for it.
struct UnregisterOnDrop<'a>(&'a Policy);

impl Drop for UnregisterOnDrop<'_> {
    fn drop(&mut self) {
        self.0.set_condition(Condition::Off);
        self.0.throttle().unregister_thread();
    }
}
